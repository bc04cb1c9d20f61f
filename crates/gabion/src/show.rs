//! One object of the cluster: `show NAME`, and what an order prints with `--json`.

use admin::report::Report;
use anyhow::{Context, Result};
use clap::Args;
use daemon::size::Size;
use fleet::target::Target;
use serde::Serialize;
use serde_json::{Value, json};

/// An object, by its kind and name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Object<'a> {
    Mdm(&'a str),
    Sds(&'a str),
    Sdc(&'a str),
    Device(u32),
    Volume(&'a str),
    Domain(&'a str),
    FaultSet(&'a str),
    Pool(&'a str),
    /// The cluster itself.
    System,
}

impl Object<'_> {
    /// Returns the present state of the object, with the fields of `gabion status --json`.
    pub(crate) fn find(self, report: &Report) -> Result<Value> {
        let found = match self {
            Object::Mdm(name) => one(&report.mdm, |m| m.name == name),
            Object::Sds(name) => one(&report.sds, |s| s.name == name),
            Object::Sdc(name) => one(&report.sdc, |s| s.name == name),
            Object::Volume(name) => one(&report.volumes, |v| v.name == name),
            Object::Domain(name) => one(&report.protection_domains, |d| d.name == name),
            Object::FaultSet(name) => one(&report.fault_sets, |f| f.name == name),
            Object::Pool(name) => one(&report.storage_pools, |p| p.name == name),
            Object::System => {
                let Report { name, cluster, level, state, .. } = report;
                Some(json!({ "name": name, "cluster": cluster, "level": level, "state": state }))
            }
            Object::Device(id) => report.sds.iter().find_map(|s| {
                let mut device = one(&s.devices, |d| d.id == id)?;
                device["sds"] = json!(s.name);
                Some(device)
            }),
        };
        let (kind, name) = self.words();
        found.with_context(|| format!("there is no {kind} `{name}`: `{}` lists them", self.list()))
    }

    /// Returns its kind and name, for messages.
    fn words(self) -> (&'static str, String) {
        match self {
            Object::Mdm(name) => ("MDM", name.into()),
            Object::Sds(name) => ("SDS", name.into()),
            Object::Sdc(name) => ("SDC", name.into()),
            Object::Device(id) => ("device", format!("dev{id}")),
            Object::Volume(name) => ("volume", name.into()),
            Object::Domain(name) => ("protection domain", name.into()),
            Object::FaultSet(name) => ("fault set", name.into()),
            Object::Pool(name) => ("storage pool", name.into()),
            Object::System => ("cluster", String::new()),
        }
    }

    /// Returns its name, for messages.
    pub(crate) fn name(self) -> String {
        self.words().1
    }

    /// Returns the command that lists all objects of its kind.
    fn list(self) -> &'static str {
        match self {
            Object::Mdm(_) => "gabion mdm list",
            Object::Sds(_) => "gabion sds list",
            Object::Sdc(_) => "gabion sdc list",
            Object::Device(_) => "gabion device list",
            Object::Volume(_) => "gabion volume list",
            Object::Domain(_) => "gabion domain list",
            Object::FaultSet(_) => "gabion fault-set list",
            Object::Pool(_) => "gabion pool list",
            Object::System => "gabion status",
        }
    }
}

/// Returns the first item for which `is` is true, as JSON.
fn one<T: Serialize>(all: &[T], is: impl Fn(&T) -> bool) -> Option<Value> {
    all.iter().find(|item| is(item)).and_then(|item| serde_json::to_value(item).ok())
}

/// Prints an object.
pub(crate) fn show(target: &Target, object: Object<'_>, json: bool) -> Result<()> {
    let value = object.find(&target.report()?)?;
    match json {
        true => println!("{}", serde_json::to_string_pretty(&value)?),
        false => println!("{}", page(&value)),
    }
    Ok(())
}

/// Columns of the text for people.
const WIDTH: usize = 100;
/// Columns by which a line that goes on is shifted.
const INDENT: usize = 2;

/// Formats an object for people: a list of its fields, in lines that fit on a terminal.
fn page(value: &Value) -> String {
    let fields = || value.as_object().into_iter().flatten();
    let rows: Vec<(String, String)> = fields().map(|(name, value)| row(name, value)).collect();
    let wide = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default() + 2;
    let mut page = String::new();
    for (name, text) in rows {
        let mut name = format!("{name}:");
        for line in text.split('\n').flat_map(|line| wrap(line, WIDTH - wide)) {
            page += format!("{name:<wide$}{line}").trim_end();
            page.push('\n');
            name.clear();
        }
    }
    page.trim_end().to_owned()
}

/// Formats a field.
fn row(name: &str, value: &Value) -> (String, String) {
    let bytes = value.as_u64().filter(|_| name.ends_with("_bytes"));
    let (name, text) = match bytes {
        Some(bytes) => (name.trim_end_matches("_bytes"), Size(bytes).to_string()),
        None => (name, words(value)),
    };
    (name.replace('_', " "), text)
}

/// Splits a line between words, where it is too long. A word is never split, so that a URI can be
/// copied.
fn wrap(line: &str, width: usize) -> Vec<String> {
    let mut words = line.split(' ');
    let mut lines = vec![words.next().unwrap_or_default().to_owned()];
    for word in words {
        match lines.last_mut() {
            Some(last) if last.chars().count() + 1 + word.chars().count() <= width => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(format!("{:INDENT$}{word}", "")),
        }
    }
    lines
}

/// Formats a value within one line, except for lists, whose items get a line each.
fn words(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.into(),
        Value::String(text) => text.clone(),
        Value::Array(all) => {
            let apart = if all.iter().any(Value::is_number) { ", " } else { "\n" };
            let none = || "-".to_owned();
            if all.is_empty() {
                none()
            } else {
                all.iter().map(words).collect::<Vec<_>>().join(apart)
            }
        }
        Value::Object(fields) => {
            // The ranges of a histogram are not readable in one line.
            let fields = fields.iter().filter(|(name, _)| *name != "histogram");
            let field = |(name, value): (&String, &Value)| match value {
                Value::Object(_) => format!("{name} ({})", words(value)),
                _ => format!("{name} {}", words(value)),
            };
            fields.map(field).collect::<Vec<_>>().join(", ").replace('_', " ")
        }
        Value::Number(number) if number.is_f64() => {
            format!("{:.1}", number.as_f64().unwrap_or_default())
        }
        Value::Number(number) => number.to_string(),
    }
}

/// The output format of an order.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// Print the object as it is now as JSON, with the fields in docs/reference/status.md
    #[arg(long)]
    json: bool,
}

impl Answer {
    /// Prints what was done to an object: `text` for people, or the object.
    pub(crate) fn print(self, target: &Target, object: Object<'_>, text: &str) -> Result<()> {
        match self.json {
            true => show(target, object, true),
            false => {
                println!("{text}");
                Ok(())
            }
        }
    }

    /// Prints that an object is gone: `text` for people, or its kind and name.
    pub(crate) fn print_removed(self, object: Object<'_>, text: &str) {
        let (kind, name) = object.words();
        match self.json {
            true => println!("{}", json!({ "removed": name, "kind": kind })),
            false => println!("{text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_line_for_each_field() {
        let value = json!({
            "name": "vol1",
            "size_bytes": 1 << 30,
            "fault_set": null,
            "thick": false,
            "nbd_uris": ["nbd://a", "nbd://b"],
            "seats": [],
            "io": { "read_latency": { "mean_us": 12.345, "histogram": [{ "from_us": 9 }] } },
            "mapped": [{ "sdc": "web1", "read_only": true }, { "sdc": "web2", "read_only": false }],
        });
        let page = page(&value);
        let has =
            |words: &[&str]| page.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(has(&["name", "vol1"]), "{page}");
        assert!(has(&["size:", "1 GiB"]), "{page}");
        assert!(has(&["fault set", "-"]), "{page}");
        assert!(has(&["nbd uris:", "nbd://a"]) && has(&["     nbd://b"]), "{page}");
        assert!(has(&["seats:", "-"]), "{page}");
        assert!(has(&["read latency (mean us 12.3)"]) && !page.contains("from us"), "{page}");
        assert!(has(&["mapped", "sdc web1", "read only yes"]) && has(&["sdc web2"]), "{page}");
    }
    #[test]
    fn lines_fit_on_a_terminal_and_a_uri_is_never_split() {
        let path =
            json!({ "reads": 123_456_789, "host": "iqn.2026-11.test:a-long-name-of-a-host" });
        let uri = format!("iscsi://10.0.0.1:3260/{}/0", "x".repeat(120));
        let paths = vec![json!({ "io": [path.clone(), path.clone()], "other": path }); 3];
        let page = page(&json!({ "paths": paths, "iscsi_uris": [uri.clone()] }));
        assert!(page.lines().all(|l| l.chars().count() <= WIDTH || l.contains(&uri)), "{page}");
        assert!(page.lines().any(|line| line.ends_with(&uri)), "{page}");
        assert_eq!(wrap("a bc def", 5), ["a bc", "  def"]);
        assert_eq!(wrap("a bc d e", 5), ["a bc", "  d e"]);
    }
}
