//! `cargo xtask image`: writes the container image as an OCI layout, without a daemon or a network.
//!
//! The command reads the last stage of `deploy/container/Containerfile`, so a build with that file
//! gives the same image. The layout follows the OCI image specification 1.1.

mod containerfile;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::package_files::{self as files, Architecture, Effort, VERSION};
use crate::shell;
use crate::static_program;
use containerfile::Image;

/// Folder of the image.
const LAYOUT: &str = "target/image";
const CONTAINERFILE: &str = "deploy/container/Containerfile";

/// Builds the program with this profile for each architecture, writes one image for all of them,
/// and prints its size. An empty list of architectures stands for the architecture of this machine.
///
/// # Errors
/// Fails if the program does not build or a file cannot be written.
pub(crate) fn run(profile: &str, architectures: &[Architecture]) -> Result<()> {
    let of_machine = [Architecture::of_machine()?];
    let architectures = if architectures.is_empty() { &of_machine } else { architectures };
    let layout = shell::root().join(LAYOUT);
    let folder = files::create_empty_folder(&layout.with_extension("contents"))?;
    let mut programs = Vec::new();
    for architecture in architectures {
        let program = folder.join(architecture.name());
        static_program::build(profile, *architecture, &program)?;
        programs.push((*architecture, program));
    }
    write(&programs, &layout)?;
    for (architecture, program) in &programs {
        let megabytes = program.metadata()?.len() as f64 / 1e6;
        println!("{LAYOUT}: weir:{VERSION} for {}, program {megabytes:.2} MB", architecture.name());
    }
    println!("compressed:");
    print!("{}", files::list_sizes(&layout.join("blobs/sha256"))?);
    Ok(())
}

/// Writes the image with this program as an archive of an OCI layout.
///
/// # Errors
/// Fails if the Containerfile has an unknown instruction or a file cannot be written.
pub(crate) fn write_archive(
    architecture: Architecture,
    program: &Path,
    archive: &Path,
) -> Result<()> {
    let layout = archive.with_extension("layout");
    write(&[(architecture, program.to_owned())], &layout)?;
    files::write_tar(&layout, &["blobs", "index.json", "oci-layout"], archive)?;
    Ok(fs::remove_dir_all(&layout)?)
}

/// Writes the image as an OCI layout. The layout names a manifest; for several architectures it
/// names an index with a manifest for each. A *manifest* lists the blobs of an image. A *blob* is a
/// file that is named by its digest, and a *descriptor* is a JSON reference to a blob.
fn write(programs: &[(Architecture, PathBuf)], layout: &Path) -> Result<()> {
    let text = fs::read_to_string(shell::root().join(CONTAINERFILE))
        .with_context(|| format!("cannot read {CONTAINERFILE}"))?;
    let image = containerfile::parse(&text)?;
    files::create_empty_folder(layout)?;
    let blobs = files::create_empty_folder(&layout.join("blobs/sha256"))?;
    let mut manifests = Vec::new();
    for (architecture, program) in programs {
        let mut manifest = add_manifest(&image, *architecture, program, layout, &blobs)?;
        manifest["platform"] = json!({"architecture": architecture.name(), "os": "linux"});
        manifests.push(manifest);
    }
    // A tool that copies an image copies only the manifest or index with its name. So the name of
    // an image for several architectures belongs to an index.
    let mut named = match manifests.as_slice() {
        [manifest] => manifest.clone(),
        _ => add_json(&blobs, &build_index(&manifests), "image.index.v1+json")?,
    };
    named["annotations"] = json!({"org.opencontainers.image.ref.name": VERSION});
    let index = build_index(&[named]);
    fs::write(layout.join("index.json"), index.to_string())?;
    fs::write(layout.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
    Ok(())
}

fn build_index(manifests: &[Value]) -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": media_type("image.index.v1+json"),
        "manifests": manifests,
    })
}

/// Writes the image of one architecture to the blobs. Returns the descriptor of its manifest.
fn add_manifest(
    image: &Image,
    architecture: Architecture,
    program: &Path,
    layout: &Path,
    blobs: &Path,
) -> Result<Value> {
    let tar = layout.join("layer.tar");
    write_layer(image, program, &layout.join("root"), &tar)?;
    let content_digest = files::compute_sha256(&tar)?;
    let layer =
        add_blob(blobs, &files::compress(&tar, Effort::Normal)?, "image.layer.v1.tar+gzip")?;
    let config = build_config(image, architecture, &content_digest)?;
    let config = add_json(blobs, &config, "image.config.v1+json")?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": media_type("image.manifest.v1+json"),
        "config": config,
        "layers": [layer],
    });
    add_json(blobs, &manifest, "image.manifest.v1+json")
}

/// Writes the files of the image to a tar archive.
fn write_layer(image: &Image, program: &Path, root: &Path, tar: &Path) -> Result<()> {
    let mut names = Vec::new();
    files::create_empty_folder(root)?;
    for file in &image.files {
        let source = file.source.as_ref().map(|source| shell::root().join(source));
        let path = root.join(&file.path);
        fs::create_dir_all(path.parent().context("a file of the image is in a folder")?)?;
        fs::copy(source.as_deref().unwrap_or(program), &path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        let mode = if file.source.is_some() { 0o644 } else { 0o755 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        let top = file.path.split('/').next().unwrap_or_default();
        if !names.contains(&top) {
            names.push(top);
        }
    }
    files::write_tar(root, &names, tar)?;
    Ok(fs::remove_dir_all(root)?)
}

/// Returns the configuration of the image. `content_digest` is the SHA-256 of the uncompressed
/// layer.
fn build_config(image: &Image, architecture: Architecture, content_digest: &str) -> Result<Value> {
    let created = files::format_commit_date("+%Y-%m-%dT%H:%M:%SZ")?;
    let mut config = image.config.clone();
    config["Labels"]["org.opencontainers.image.version"] = json!(VERSION);
    config["Labels"]["org.opencontainers.image.created"] = json!(created);
    Ok(json!({
        "created": created,
        "architecture": architecture.name(),
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{content_digest}")]},
        "history": [{"created": created, "created_by": "cargo xtask image"}],
    }))
}

/// Writes JSON to the blobs. Returns its descriptor. `kind` is the end of its media type.
fn add_json(blobs: &Path, value: &Value, kind: &str) -> Result<Value> {
    let file = blobs.join("json");
    fs::write(&file, value.to_string())?;
    add_blob(blobs, &file, kind)
}

/// Moves a file to the blobs under its digest. Returns its descriptor. `kind` is the end of its
/// media type.
fn add_blob(blobs: &Path, file: &Path, kind: &str) -> Result<Value> {
    let digest = files::compute_sha256(file)?;
    let blob = blobs.join(&digest);
    fs::rename(file, &blob)?;
    let size = blob.metadata()?.len();
    let digest = format!("sha256:{digest}");
    Ok(json!({"mediaType": media_type(kind), "digest": digest, "size": size}))
}

fn media_type(kind: &str) -> String {
    format!("application/vnd.oci.{kind}")
}

#[cfg(test)]
mod tests {
    //! Goal: an image for several architectures is one index, with a complete image for each.

    use super::*;

    #[test]
    fn one_index_has_an_image_for_each_architecture() {
        let folder = tempfile::tempdir().unwrap();
        let programs = [Architecture::Amd64, Architecture::Arm64].map(|architecture| {
            let path = folder.path().join(architecture.name());
            fs::write(&path, architecture.target()).unwrap();
            (architecture, path)
        });
        let layout = folder.path().join("layout");
        write(&programs, &layout).unwrap();
        let read =
            |path: &Path| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap().trim_start_matches("sha256:");
            layout.join("blobs/sha256").join(digest)
        };
        let layout_index = read(&layout.join("index.json"));
        let [image] = layout_index["manifests"].as_array().unwrap().as_slice() else {
            panic!("one name refers to one image: {layout_index}");
        };
        assert_eq!(image["annotations"]["org.opencontainers.image.ref.name"], VERSION);
        let index = read(&blob(image));
        let manifests = index["manifests"].as_array().unwrap();
        assert_eq!(manifests.len(), programs.len(), "{index}");
        for ((architecture, _), descriptor) in programs.iter().zip(manifests) {
            assert_eq!(descriptor["platform"]["architecture"], architecture.name());
            let manifest = read(&blob(descriptor));
            let config = read(&blob(&manifest["config"]));
            assert_eq!(config["architecture"], architecture.name());
            let mut tar = std::process::Command::new("tar");
            tar.args(["--extract", "--gzip", "--to-stdout", "--file"]);
            tar.arg(blob(&manifest["layers"][0])).arg("usr/bin/weir");
            assert_eq!(shell::read_output(&mut tar).unwrap(), architecture.target());
        }
    }
}
