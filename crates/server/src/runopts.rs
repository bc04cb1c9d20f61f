//! Options of `mdm run`, `sds run` and `sdc run`.

use anyhow::{Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};

/// What the three have in common.
#[derive(Args, Debug)]
pub struct RunArgs {
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
    /// The file to run with; `None` when the example was asked for, and printed.
    pub fn config_or_example(&self, example: &str) -> Result<Option<&Path>> {
        match self.configs_or_example(example) {
            None => Ok(None),
            Some([file]) => Ok(Some(file)),
            Some(_) => bail!("this role runs alone in its process: give one --config"),
        }
    }

    /// The files to run with, for a role of which several share a process.
    pub fn configs_or_example(&self, example: &str) -> Option<&[PathBuf]> {
        if self.example_config {
            print!("{example}");
            return None;
        }
        Some(&self.config)
    }
}
