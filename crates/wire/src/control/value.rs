//! Values of enumerations that a later build may have.

/// A value of an enumeration that this build does not know, where it has a meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownValue {
    /// The enumeration.
    pub of: &'static str,
    /// The value.
    pub value: i32,
}

impl core::fmt::Display for UnknownValue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {}", self.of, self.value)
    }
}

/// Returns an error unless this build knows the value.
pub fn known<T: TryFrom<i32>>(of: &'static str, value: i32) -> Result<(), UnknownValue> {
    T::try_from(value).map(drop).map_err(|_| UnknownValue { of, value })
}
