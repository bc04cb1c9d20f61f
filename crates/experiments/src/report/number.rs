//! Numbers and text as an HTML page shows them.

/// Formats a number with three digits and a prefix: `31.0 M`, `240 K`, `83.3`, `1.72`.
pub(crate) fn short(n: f64) -> String {
    let (n, prefix) = match n.abs() {
        a if a >= 999.5e3 => (n / 1e6, " M"),
        a if a >= 9995.0 => (n / 1e3, " K"),
        _ => (n, ""),
    };
    let digits = match n.abs() {
        _ if n.fract() == 0.0 && prefix.is_empty() => 0,
        a if a >= 99.95 => 0,
        a if a >= 9.995 => 1,
        _ => 2,
    };
    format!("{n:.digits$}{prefix}")
}

/// Formats a round number for an axis: `20 K`, `0.5`.
pub(crate) fn tick(n: f64) -> String {
    let text = short(n);
    let (digits, prefix) = text.split_once(' ').unwrap_or((&text, ""));
    let digits = if digits.contains('.') {
        digits.trim_end_matches('0').trim_end_matches('.')
    } else {
        digits
    };
    if prefix.is_empty() { digits.to_owned() } else { format!("{digits} {prefix}") }
}

/// Escapes text for HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_enough() {
        for (n, text) in [
            (31e6, "31.0 M"),
            (23.7e6, "23.7 M"),
            (240e3, "240 K"),
            (999_600.0, "1.00 M"),
            (1500.0, "1500"),
            (83.333, "83.3"),
            (1.724, "1.72"),
            (128.0, "128"),
            (0.0, "0"),
        ] {
            assert_eq!(short(n), text);
        }
        for (n, text) in
            [(20e3, "20 K"), (1e6, "1 M"), (0.5, "0.5"), (100.0, "100"), (500e3, "500 K")]
        {
            assert_eq!(tick(n), text);
        }
        assert_eq!(escape("a<b & \"c\">"), "a&lt;b &amp; &quot;c&quot;&gt;");
    }
}
