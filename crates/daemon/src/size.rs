//! Sizes as people write them: `1GiB`, `64M`, `1.5T`, `512`.
//!
//! `K M G T P` and `KiB MiB ...` are powers of 1024, as in `qemu-img` and `fio`; `KB MB ...` are
//! powers of 1000.

/// A size in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

const UNITS: &str = "KMGTP";

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong = || {
            format!(
                "`{text}` is not a size: write it as 1GiB, 64M, 1.5T or 4096 (K, M, G, T and P are \
                 powers of 1024, and so are KiB, MiB, ...; KB, MB, ... are powers of 1000)"
            )
        };
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        let suffix = suffix.trim().to_ascii_uppercase();
        let scale = match suffix.strip_suffix("IB").or(suffix.strip_suffix('B')).unwrap_or(&suffix)
        {
            "" if suffix.len() < 2 => 1u64,
            unit => {
                let power = 1 + UNITS.find(unit).filter(|_| unit.len() == 1).ok_or_else(wrong)?;
                let base: u64 = if suffix.len() == 2 { 1000 } else { 1024 };
                base.pow(power as u32)
            }
        };
        let bytes = match number.split_once('.') {
            None => number.parse::<u64>().map_err(|_| wrong())?.checked_mul(scale),
            Some(_) => {
                let exact = number.parse::<f64>().map_err(|_| wrong())? * scale as f64;
                (exact < 2f64.powi(63)).then_some(exact as u64)
            }
        };
        bytes.map(Size).ok_or_else(|| format!("`{text}` is more than 8 EiB"))
    }
}

impl Size {
    /// Formats exactly and as one word, as in command lines and files: `1GiB`, `1536MiB`, `1000`.
    pub fn word(self) -> String {
        let power = (self.0.trailing_zeros() / 10).min(UNITS.len() as u32);
        match UNITS.as_bytes()[..power as usize].last() {
            Some(unit) if self.0 > 0 => {
                format!("{}{}iB", self.0 >> (10 * power), *unit as char)
            }
            _ => self.0.to_string(),
        }
    }
}

impl std::fmt::Display for Size {
    /// Formats exactly if it is a whole number of a unit, else with two decimals.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let power = (self.0.max(1).ilog2() / 10).min(UNITS.len() as u32);
        if power == 0 {
            return f.pad(&format!("{} B", self.0));
        }
        let (scale, unit) = (1u64 << (10 * power), UNITS.as_bytes()[power as usize - 1] as char);
        f.pad(&if self.0.is_multiple_of(scale) {
            format!("{} {unit}iB", self.0 / scale)
        } else {
            format!("{:.2} {unit}iB", self.0 as f64 / scale as f64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_as_qemu_img_reads_them() {
        for (text, bytes) in [
            ("512", 512),
            ("512B", 512),
            ("64k", 65536),
            ("1GiB", 1 << 30),
            ("1 GiB", 1 << 30),
            ("1.5G", 3 << 29),
            ("1GB", 1_000_000_000),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "G", "1X", "1GiBs", "-1", "1..2G", "20000P", "iB", "1iB", "1KMB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_print_short() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (3 << 20, "3 MiB"), (3 << 29, "1.50 GiB")]
        {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }

    #[test]
    fn a_word_is_exact() {
        for (bytes, word) in [(0, "0"), (1000, "1000"), (3 << 29, "1536MiB"), (1 << 60, "1024PiB")]
        {
            assert_eq!(Size(bytes).word(), word);
            assert_eq!(word.parse(), Ok(Size(bytes)));
        }
    }
}
