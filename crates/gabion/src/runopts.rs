//! Options of `mdm run`, `sds run` and `sdc run`.

use anyhow::{Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};

/// Options that the three commands share.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The role's configuration
    #[arg(long, value_name = "FILE", required_unless_present = "example_config")]
    config: Vec<PathBuf>,

    /// How to talk to the kernel, whatever the file says: auto, uring or epoll
    #[arg(long)]
    pub backend: Option<rt::Backend>,

    /// Print a configuration with every field explained, and exit
    #[arg(long)]
    example_config: bool,
}

impl RunArgs {
    /// Returns the file to run with; `None` if the example was requested, and printed.
    pub(crate) fn config_or_example(&self, example: &str) -> Result<Option<&Path>> {
        match self.configs_or_example(example) {
            None => Ok(None),
            Some([file]) => Ok(Some(file)),
            Some(_) => bail!("this role runs alone in its process: give one --config"),
        }
    }

    /// Returns the files to run with, for a role that can share its process with others.
    pub(crate) fn configs_or_example(&self, example: &str) -> Option<&[PathBuf]> {
        if self.example_config {
            print!("{example}");
            return None;
        }
        Some(&self.config)
    }
}
