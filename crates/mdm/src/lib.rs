//! The metadata manager: replicated state, failure detector, controller.
