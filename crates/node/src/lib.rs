//! The three roles, composed from the cores: SDS, SDC, MDM.
