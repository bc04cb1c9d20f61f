//! CRC-32C (Castagnoli), the one checksum of wire and media.

/// CRC-32C of `data`.
pub fn crc32c(data: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(data)
}

#[cfg(test)]
mod tests {
    #[test]
    fn matches_rfc_3720_vectors() {
        assert_eq!(super::crc32c(&[0u8; 32]), 0x8a91_36aa);
        assert_eq!(super::crc32c(&[0xffu8; 32]), 0x62a8_ab43);
    }
}
