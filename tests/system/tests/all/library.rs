//! `libgabion` as programs use it: its example in C, and fio with the engine that links it.
//!
//! The tests use a user's compilers and scripts, and see the product only through its header.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use system::bytes::Random;
use system::fio::{built, engine, workspace};
use system::run::run;
use system::{Cluster, Fio, Folder, MIB, Options, case, secs, shell, wait};

/// Compiles the example as documented.
fn example(folder: &Folder) -> Result<String> {
    let (library, program) = (built()?, folder.join("copy"));
    let link = folder.join("libgabion.so.0");
    if !link.exists() {
        std::os::unix::fs::symlink(library.join("libgabion.so"), link)?;
    }
    let capi = workspace().join("crates/capi");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-o"]).arg(&program);
    gcc.arg(capi.join("examples/copy.c")).arg("-I").arg(capi.join("include"));
    gcc.arg("-L").arg(&library).args(["-lgabion", "-Wl,-rpath,$ORIGIN"]);
    run(&mut gcc)?.ok()?;
    Ok(program.display().to_string())
}

#[test]
fn the_example_copies_into_a_volume_and_back() {
    case(|| {
        let cluster = Cluster::start(&Options { volumes: &["vol1:64MiB"], ..Options::default() })?;
        let copy = example(&cluster.folder)?;
        let (input, output) = (cluster.folder.join("in"), cluster.folder.join("out"));
        let mut content = Random::new(5).bytes(37 * MIB as usize + 1234);
        fs::write(&input, &content)?;
        let (input, output, dir) = (input.display(), output.display(), cluster.dir());
        shell(&format!("{copy} dir:{dir} vol1 < {input}"))?.ok()?;
        shell(&format!("{copy} dir:{dir} vol1 {} > {output}", content.len()))?.ok()?;
        ensure!(
            fs::read(output.to_string())? == content,
            "the library brought back something else"
        );
        // NBD serves the data that was written through the library.
        content.resize(64 * MIB as usize, 0);
        cluster.verify("vol1", &content)?;
        // A volume that was created after the client's last map.
        cluster.gabion(&["volume", "create", "late", "8MiB"])?.ok()?;
        shell(&format!("head -c 4096 {input} | {copy} dir:{dir} late"))?.ok()?;
        // Every failure says what to do.
        let words = |line: &str, words: &[&str]| shell(line)?.fails(1, words);
        words(&format!("{copy} dir:{dir} nope < {input}"), &["no volume `nope`", "volume create"])?;
        words(&format!("{copy} dir:/nowhere vol1 < {input}"), &["/nowhere", "gabion up"])?;
        words(&format!("{copy} localhost vol1 < {input}"), &["IP:PORT"])?;
        let full = format!("head -c 9000000 {input} | {copy} dir:{dir} late");
        words(&full, &["the range leaves the volume"])?;
        Ok(())
    });
}

/// Compiles a program of `tests/system/c`.
fn program(folder: &Folder, name: &str) -> Result<PathBuf> {
    example(folder)?; // creates the link to the library
    let program = folder.join(name);
    let source = workspace().join(format!("tests/system/c/{name}.c"));
    for compiler in ["-xc", "-xc++"] {
        let mut gcc = Command::new("gcc");
        gcc.args([compiler, "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program);
        gcc.arg(&source).arg("-I").arg(workspace().join("crates/capi/include"));
        gcc.arg("-L").arg(built()?).args(["-lgabion", "-Wl,-rpath,$ORIGIN"]);
        if compiler == "-xc++" {
            // The header is also valid C++; checking that needs no C++ library.
            gcc.arg("-fsyntax-only");
        }
        run(&mut gcc)?.ok()?;
    }
    Ok(program)
}

#[test]
fn wrong_calls_are_refused_in_words_and_harm_nothing() {
    case(|| {
        let cluster = Cluster::start(&Options { volumes: &["vol1:64MiB"], ..Options::default() })?;
        let program = program(&cluster.folder, "wrong")?;
        let said = run(Command::new(&program).arg(format!("dir:{}", cluster.dir())))?.ok()?;
        ensure!(said.ends_with("all refused\n"), "{said}");
        Ok(())
    });
}

#[test]
fn a_handle_does_not_outlive_the_permission_that_it_was_opened_with() {
    case(|| {
        let cluster = Cluster::start(&Options { volumes: &["vol1:64MiB"], ..Options::default() })?;
        let program = program(&cluster.folder, "fenced")?;
        let mut child = Command::new(&program)
            .arg(format!("dir:{}", cluster.dir()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = BufReader::new(child.stdout.take().context("stdout is piped")?).lines();
        let first = said.next().context("it says something")??;
        ensure!(first == "written", "{first}");
        let taken = cluster.gabion(&["volume", "delete", "vol1", "--yes"])?;
        taken.fails(1, &["in use by"])?;
        // The program stands still: a volume is taken from all, and another client writes to it.
        cluster.gabion(&["volume", "unmap", "vol1", "--all"])?.ok()?;
        cluster.gabion(&["volume", "map", "vol1", "--all"])?.ok()?;
        cluster.nbd("vol1")?.write(0, &[2; 4096])?;
        child.stdin.take().context("stdin is piped")?.write_all(b"mapped\n")?;
        let rest = said.collect::<Result<Vec<String>, _>>()?;
        ensure!(child.wait()?.success() && rest == ["kept out"], "{rest:?}");
        Ok(())
    });
}

#[test]
fn fio_through_the_library_verifies_while_a_server_dies_and_returns() {
    case(|| {
        let engine = engine()?;
        let cluster = Cluster::start(&Options::default())?;
        let job = "--rw=randwrite --numjobs=2 --bsrange=4k-1m --iodepth=32 --size=200m --offset_increment=200m \
                   --fsync=50 --verify=crc32c --do_verify=1 --verify_backlog=64 --verify_fatal=1 --time_based \
                   --runtime=600";
        let mut args: Vec<String> = job.split_whitespace().map(str::to_owned).collect();
        args.extend([format!("--ioengine=external:{engine}"), "--volume=vol1".to_owned()]);
        args.push(format!("--cluster=dir:{}", cluster.dir()));
        let fio = Fio::start(&cluster.folder, "verify", &args)?;
        wait("fio writes", secs(60), || {
            Ok((cluster.number("/capacity/protected_bytes")? > 0).then_some(()))
        })?;
        cluster.gabion(&["sds", "kill", "2"])?.ok()?;
        cluster.wait_down("sds2")?;
        cluster.start_sds(2)?;
        cluster.wait_state("healthy", secs(60))?;
        let did = fio.stop()?;
        ensure!(did.written > 0 && did.verified > 0, "{did:?}");
        Ok(())
    });
}
