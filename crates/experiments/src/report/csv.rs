//! Lines of CSV (RFC 4180).

/// Returns a line of fields, quoted where that is necessary.
pub(crate) fn line<'a>(fields: impl IntoIterator<Item = &'a str>) -> String {
    let quoted = fields.into_iter().map(|field| {
        if field.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", field.replace('"', "\"\""))
        } else {
            field.to_owned()
        }
    });
    quoted.collect::<Vec<_>>().join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fields_that_need_it_are_quoted() {
        assert_eq!(line(["a", "b c", "", "d,e", "f\"g"]), "a,b c,,\"d,e\",\"f\"\"g\"\n");
    }
}
