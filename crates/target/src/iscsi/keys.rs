//! The operational keys of a login, as one table: the values that each allows, and the answer to
//! each offer (RFC 7143 13).
//!
//! Invariants: an answer depends only on the offer and the table. A key that is offered again gets
//! no second answer: the login ends. A value that the rules do not allow is answered `Reject`, and
//! the default stays.

use super::framer::Mode;
use super::text::Outgoing;
use base::Limits;

/// The negotiated settings. The defaults are those of the RFC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Params {
    /// Heads have a digest.
    pub(crate) header_digest: bool,
    /// Data has a digest.
    pub(crate) data_digest: bool,
    /// No unsolicited Data-Out (InitialR2T).
    pub(crate) initial_r2t: bool,
    /// A command PDU may carry data (ImmediateData).
    pub(crate) immediate_data: bool,
    /// Most bytes of unsolicited data of a command.
    pub(crate) first_burst: u32,
    /// Most bytes of a sequence.
    pub(crate) max_burst: u32,
    /// Most bytes of data of a PDU to the initiator.
    pub(crate) segment: u32,
}

impl Params {
    /// The values before any negotiation.
    pub(crate) const DEFAULT: Params = Params {
        header_digest: false,
        data_digest: false,
        initial_r2t: true,
        immediate_data: true,
        first_burst: 65536,
        max_burst: 262_144,
        segment: super::proto::LOGIN_SEGMENT,
    };

    /// Returns how the framer splits the stream from now on.
    pub(crate) fn mode(&self) -> Mode {
        Mode { full: true, header_digest: self.header_digest, data_digest: self.data_digest }
    }

    /// Returns the most bytes of unsolicited data of a command.
    pub(crate) fn unsolicited(&self) -> u32 {
        self.first_burst.min(self.max_burst)
    }

    /// Returns true if unsolicited data is no longer than a burst (13.14), or if there is none.
    pub(crate) fn are_sound(&self) -> bool {
        let none = self.initial_r2t && !self.immediate_data;
        none || self.first_burst <= self.max_burst
    }
}

/// How the answer follows from the offer.
#[derive(Clone, Copy)]
enum Rule {
    /// The first offered value that is in the list; `None` if there is no other.
    List(&'static [&'static str]),
    /// `Yes` if either side says so.
    Or(bool),
    /// `Yes` if both sides say so.
    And(bool),
    /// The lower number; the offer has to be in the range.
    Min { ours: Ours, from: u32, to: u32 },
    /// The higher number.
    Max { ours: u32, to: u32 },
    /// A number that the initiator declares, and that is not answered.
    Declared { from: u32, to: u32 },
    /// Always the same answer.
    Answer(&'static str),
    /// A text that the initiator declares, and that is not answered here.
    Said,
}

/// Our number of a key.
#[derive(Clone, Copy)]
enum Ours {
    Fixed(u32),
    FirstBurst,
    MaxBurst,
}

/// One row: the key, its rule, and true if the key is irrelevant in a discovery session.
type Row = (&'static str, Rule, bool);

const LENGTHS: (u32, u32) = (512, (1 << 24) - 1);

const fn least(ours: Ours, (from, to): (u32, u32)) -> Rule {
    Rule::Min { ours, from, to }
}

const TABLE: &[Row] = &[
    ("HeaderDigest", Rule::List(&["CRC32C", "None"]), false),
    ("DataDigest", Rule::List(&["CRC32C", "None"]), false),
    ("MaxConnections", least(Ours::Fixed(1), (1, 65535)), true),
    ("InitialR2T", Rule::Or(false), true),
    ("ImmediateData", Rule::And(true), true),
    ("MaxRecvDataSegmentLength", Rule::Declared { from: LENGTHS.0, to: LENGTHS.1 }, false),
    ("MaxBurstLength", least(Ours::MaxBurst, LENGTHS), true),
    ("FirstBurstLength", least(Ours::FirstBurst, LENGTHS), true),
    ("DefaultTime2Wait", Rule::Max { ours: 2, to: 3600 }, false),
    ("DefaultTime2Retain", least(Ours::Fixed(0), (0, 3600)), false),
    ("MaxOutstandingR2T", least(Ours::Fixed(1), (1, 65535)), true),
    ("DataPDUInOrder", Rule::Or(true), true),
    ("DataSequenceInOrder", Rule::Or(true), true),
    ("ErrorRecoveryLevel", least(Ours::Fixed(0), (0, 2)), false),
    ("iSCSIProtocolLevel", least(Ours::Fixed(1), (0, 31)), true),
    ("TaskReporting", Rule::List(&["RFC3720"]), true),
    ("IFMarker", Rule::Answer("No"), false),
    ("OFMarker", Rule::Answer("No"), false),
    ("IFMarkInt", Rule::Answer("Reject"), false),
    ("OFMarkInt", Rule::Answer("Reject"), false),
    ("InitiatorName", Rule::Said, false),
    ("InitiatorAlias", Rule::Said, false),
    ("TargetName", Rule::Said, false),
    ("SessionType", Rule::Said, false),
];

/// The negotiation of one login.
#[derive(Debug)]
pub(crate) struct Negotiation {
    /// The values so far.
    pub(crate) params: Params,
    first_burst: u32,
    max_burst: u32,
    /// One bit per row of the table that was offered.
    offered: u32,
}

/// A key was offered twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Twice;

impl Negotiation {
    /// Creates a negotiation with our bounds.
    pub(crate) fn new(limits: &Limits) -> Negotiation {
        const { assert!(TABLE.len() <= 32) };
        Negotiation {
            params: Params::DEFAULT,
            first_burst: limits.iscsi_first_burst,
            max_burst: limits.iscsi_max_burst,
            offered: 0,
        }
    }

    /// Takes an offer, and adds the answer to `out`, if it needs one.
    pub(crate) fn offer(
        &mut self,
        (key, value): (&str, &str),
        discovery: bool,
        out: &mut Outgoing,
    ) -> Result<(), Twice> {
        let Some(row) = TABLE.iter().position(|row| row.0 == key) else {
            out.pair(key, "NotUnderstood");
            return Ok(());
        };
        let bit = 1 << row;
        if self.offered & bit != 0 {
            return Err(Twice);
        }
        self.offered |= bit;
        let (_, rule, only_normal) = TABLE[row];
        if only_normal && discovery {
            out.pair(key, "Irrelevant");
            return Ok(());
        }
        if let Some(answer) = self.answer(key, rule, value) {
            answer.put(key, out);
        }
        Ok(())
    }

    /// Returns the answer, and stores the result; `None` if the key has no answer.
    fn answer<'a>(&mut self, key: &str, rule: Rule, value: &'a str) -> Option<Answer<'a>> {
        let number = number(value);
        let within = |from: u32, to: u32| number.filter(|n| (from..=to).contains(n));
        let rejected = Some(Answer::Text("Reject"));
        match rule {
            Rule::Said => None,
            Rule::Answer(text) => Some(Answer::Text(text)),
            Rule::List(known) => {
                let Some(first) = value.split(',').find(|value| known.contains(value)) else {
                    return rejected;
                };
                self.set(key, u32::from(first == "CRC32C"));
                Some(Answer::Text(first))
            }
            Rule::Or(ours) | Rule::And(ours) => {
                let theirs = match value {
                    "Yes" => true,
                    "No" => false,
                    _ => return rejected,
                };
                let both = if matches!(rule, Rule::Or(_)) { ours | theirs } else { ours & theirs };
                self.set(key, u32::from(both));
                Some(Answer::Text(if both { "Yes" } else { "No" }))
            }
            Rule::Min { ours, from, to } => {
                let Some(theirs) = within(from, to) else { return rejected };
                let ours = match ours {
                    Ours::Fixed(ours) => ours,
                    Ours::FirstBurst => self.first_burst,
                    Ours::MaxBurst => self.max_burst,
                };
                self.set(key, theirs.min(ours));
                Some(Answer::Number(theirs.min(ours)))
            }
            Rule::Max { ours, to } => {
                let Some(theirs) = within(0, to) else { return rejected };
                Some(Answer::Number(theirs.max(ours)))
            }
            Rule::Declared { from, to } => match within(from, to) {
                Some(theirs) => {
                    self.set(key, theirs);
                    None
                }
                None => rejected,
            },
        }
    }

    fn set(&mut self, key: &str, value: u32) {
        let params = &mut self.params;
        match key {
            "HeaderDigest" => params.header_digest = value == 1,
            "DataDigest" => params.data_digest = value == 1,
            "InitialR2T" => params.initial_r2t = value == 1,
            "ImmediateData" => params.immediate_data = value == 1,
            "FirstBurstLength" => params.first_burst = value,
            "MaxBurstLength" => params.max_burst = value,
            "MaxRecvDataSegmentLength" => params.segment = value,
            _ => {} // we have one value, which the RFC's rule keeps
        }
    }
}

/// An answer before it is converted to text.
enum Answer<'a> {
    Text(&'a str),
    Number(u32),
}

impl Answer<'_> {
    fn put(self, key: &str, out: &mut Outgoing) {
        match self {
            Answer::Text(text) => out.pair(key, text),
            Answer::Number(number) => out.pair(key, &alloc::format!("{number}")),
        }
    }
}

/// Parses a number in decimal or hexadecimal digits.
pub(crate) fn number(value: &str) -> Option<u32> {
    let (digits, radix) = match value.strip_prefix("0x").or(value.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (value, 10),
    };
    if digits.starts_with('+') {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    /// Returns the answer to an offer, and what was negotiated.
    fn answer(key: &str, value: &str, discovery: bool) -> (String, Params) {
        let mut negotiation = Negotiation::new(&Limits::SHIPPED);
        let mut out = Outgoing::default();
        negotiation.offer((key, value), discovery, &mut out).unwrap();
        let text = core::str::from_utf8(out.part(usize::MAX).0).unwrap();
        let value = text.strip_prefix(key).and_then(|t| t.strip_prefix('=')).unwrap_or(text);
        (String::from(value.trim_end_matches('\0')), negotiation.params)
    }

    #[test]
    fn each_offer_has_its_answer() {
        for (key, offer, expected) in [
            ("HeaderDigest", "None", "None"),
            ("HeaderDigest", "CRC32C,None", "CRC32C"),
            ("HeaderDigest", "None,CRC32C", "None"),
            ("DataDigest", "x-mine,CRC32C", "CRC32C"),
            ("DataDigest", "x-mine", "Reject"),
            ("MaxConnections", "8", "1"),
            ("MaxConnections", "0", "Reject"),
            ("InitialR2T", "No", "No"),
            ("InitialR2T", "Yes", "Yes"),
            ("InitialR2T", "yes", "Reject"),
            ("ImmediateData", "Yes", "Yes"),
            ("ImmediateData", "No", "No"),
            ("MaxRecvDataSegmentLength", "262144", ""),
            ("MaxRecvDataSegmentLength", "511", "Reject"),
            ("MaxBurstLength", "16776192", "1048576"),
            ("MaxBurstLength", "0x10000", "65536"),
            ("MaxBurstLength", "16777216", "Reject"),
            ("FirstBurstLength", "262144", "65536"),
            ("FirstBurstLength", "4096", "4096"),
            ("FirstBurstLength", "-1", "Reject"),
            ("FirstBurstLength", "+4096", "Reject"),
            ("DefaultTime2Wait", "0", "2"),
            ("DefaultTime2Wait", "5", "5"),
            ("DefaultTime2Retain", "20", "0"),
            ("MaxOutstandingR2T", "16", "1"),
            ("DataPDUInOrder", "No", "Yes"),
            ("DataSequenceInOrder", "No", "Yes"),
            ("ErrorRecoveryLevel", "2", "0"),
            ("ErrorRecoveryLevel", "3", "Reject"),
            ("iSCSIProtocolLevel", "2", "1"),
            ("TaskReporting", "ResponseFence,RFC3720", "RFC3720"),
            ("IFMarker", "Yes", "No"),
            ("OFMarkInt", "1~2048", "Reject"),
            ("X-com.example.key", "1", "NotUnderstood"),
            ("headerdigest", "None", "NotUnderstood"),
            ("InitiatorAlias", "here", ""),
        ] {
            assert_eq!(answer(key, offer, false).0, expected, "{key}={offer}");
        }
    }

    #[test]
    fn a_discovery_session_has_no_data() {
        for key in ["MaxConnections", "InitialR2T", "MaxBurstLength", "TaskReporting"] {
            assert_eq!(answer(key, "1", true).0, "Irrelevant", "{key}");
        }
        assert_eq!(answer("HeaderDigest", "CRC32C", true).0, "CRC32C");
    }

    #[test]
    fn rejected_values_leave_the_default() {
        assert_eq!(answer("FirstBurstLength", "1", false).1, Params::DEFAULT);
        assert_eq!(answer("MaxRecvDataSegmentLength", "x", false).1, Params::DEFAULT);
        let params = answer("DataDigest", "CRC32C", false).1;
        assert_eq!(params, Params { data_digest: true, ..Params::DEFAULT });
    }

    #[test]
    fn a_key_is_offered_once() {
        let mut negotiation = Negotiation::new(&Limits::SHIPPED);
        let mut out = Outgoing::default();
        assert_eq!(negotiation.offer(("InitialR2T", "No"), false, &mut out), Ok(()));
        assert_eq!(negotiation.offer(("InitialR2T", "No"), false, &mut out), Err(Twice));
    }
}
