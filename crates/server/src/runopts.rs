//! Options of `mdm run`, `sds run` and `sdc run`.

use clap::Args;
use std::path::{Path, PathBuf};

/// What the three have in common.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// The role's configuration
    #[arg(long, value_name = "FILE", required_unless_present = "example_config")]
    config: Option<PathBuf>,

    /// How to talk to the kernel, whatever the file says: auto, uring or epoll
    #[arg(long)]
    pub backend: Option<rt::Backend>,

    /// Print a configuration with every field explained, and exit
    #[arg(long)]
    example_config: bool,
}

impl RunArgs {
    /// The file to run with; `None` when the example was asked for, and printed.
    pub fn config_or_example(&self, example: &str) -> Option<&Path> {
        if self.example_config {
            print!("{example}");
            return None;
        }
        self.config.as_deref()
    }
}
