// Included by the tests of each crate that has fuzz targets, so that every test run replays the
// corpus without a fuzzer.

#[test]
fn the_fuzz_corpus_passes_all_targets() {
    let mut folders = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let corpus =
        folders.find_map(|folder| Some(folder.join("fuzz/corpus")).filter(|it| it.is_dir()));
    let corpus = corpus.expect("a folder above the crate holds fuzz/corpus");
    for (name, target) in super::TARGETS {
        let folder = corpus.join(name);
        let entries = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(!files.is_empty(), "no input in {}", folder.display());
        for file in files {
            let bytes = std::fs::read(&file).unwrap();
            let has_passed = std::panic::catch_unwind(|| target(&bytes)).is_ok();
            assert!(has_passed, "{} fails; the panic is above", file.display());
        }
    }
}
