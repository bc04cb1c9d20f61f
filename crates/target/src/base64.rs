//! Binary values as text in base64 (RFC 4648).

use alloc::vec::Vec;

/// Returns the bytes of a text in base64; `None` if the text is not base64, or is not padded.
pub(crate) fn decode(digits: &[u8]) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(4) {
        return None;
    }
    let padding = digits.iter().rev().take(2).take_while(|digit| **digit == b'=').count();
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for digit in &digits[..digits.len() - padding] {
        let six = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}
