//! Goal: the machine is described correctly. Method: texts of `/proc` from different machines, and
//! this machine.

use super::{cpu_model, governor, memory_bytes, read};

#[test]
fn the_cpu_is_named_on_intel_and_on_arm() {
    let intel = "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Intel(R) Xeon(R) @ 2.00GHz\n";
    assert_eq!(cpu_model(intel), "Intel(R) Xeon(R) @ 2.00GHz");
    let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
    assert_eq!(cpu_model(arm), "implementer 0x41 part 0xd0c");
    assert_eq!(cpu_model(""), "");
}

#[test]
fn memory_is_in_bytes() {
    assert_eq!(memory_bytes("MemTotal:       16384 kB\nMemFree: 1 kB\n"), 16_384 * 1024);
    assert_eq!(memory_bytes("nothing"), 0);
}

#[test]
fn different_governors_of_cores_are_all_reported() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(governor(folder.path()), None);
    for (cpu, name) in [("cpu0", "performance\n"), ("cpu1", "powersave\n"), ("cpu2", "powersave\n")]
    {
        let cpu_folder = folder.path().join(cpu).join("cpufreq");
        std::fs::create_dir_all(&cpu_folder).unwrap();
        std::fs::write(cpu_folder.join("scaling_governor"), name).unwrap();
    }
    assert_eq!(governor(folder.path()).as_deref(), Some("performance, powersave"));
}

#[test]
fn this_machine_has_a_kernel_a_core_and_memory() {
    let fingerprint = read(Some("127.0.0.1:1".parse().unwrap()));
    assert!(
        fingerprint.cores >= 1
            && fingerprint.memory_bytes > 1 << 20
            && !fingerprint.kernel.is_empty(),
        "{fingerprint:?}"
    );
    assert!(fingerprint.target_local);
    assert!(!read(Some("192.0.2.1:1".parse().unwrap())).target_local);
}
