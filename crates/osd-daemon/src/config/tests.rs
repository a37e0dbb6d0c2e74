use super::*;
use placement::threads::{LcamRule, Mapping};
use proptest::prelude::*;

proptest! {
    /// They come from an operator, over the admin socket too.
    #[test]
    fn any_words_are_taken_as_they_are_or_refused(
        known in 0..Settings::KEYS.len(),
        guess in "[a-z_]{0,12}|\\PC{0,12}",
        value in r#"-?[0-9]{1,20}(\.[0-9]{1,3})?|[a-z0-9,"'\[\]{}.:=\n-]{0,40}|\PC{0,60}"#,
    ) {
        for key in [Settings::KEYS[known], &guess] {
            let Ok(settings) = Settings::from_words(key, &value) else { continue };
            let words = settings.words();
            for (key, value) in &words {
                prop_assert_eq!(&Settings::from_words(key, value).expect("what was told can be set").words(), &words);
            }
            drop(Config::new(settings));
        }
    }
}

#[test]
fn any_number_is_told_as_it_can_be_set() {
    for told in ["-88278629929515580000.0", "1e300", "-inf", "nan", "0.85"] {
        let words = Settings::from_words("mon_osd_nearfull_ratio", told).unwrap().words();
        let [(key, value)] = words.as_slice() else { panic!("{words:?}") };
        assert_eq!(Settings::from_words(key, value).unwrap().words(), words);
    }
}

#[test]
fn misspelt_key_names_the_nearest() {
    let error = Settings::from_toml("osd_cuont = 3").unwrap_err();
    assert!(error.contains("`osd_cuont`") && error.contains("`osd_count`"), "{error}");
}

#[test]
fn file_gives_way_to_flags() {
    let file = Settings::from_toml("osd_count = 5\npool_k = 3").unwrap();
    let flags = Settings { osd_count: Some(4), ..Settings::default() };
    let config = Config::new(flags.or(file)).unwrap();
    assert_eq!((config.osd_count, config.profile.k()), (4, 3));
}

#[test]
fn values_out_of_range_say_what_is_allowed() {
    for (text, part) in [
        ("osd_count = 2", "at least as many OSDs"),
        ("pool_k = 0", "k must be at least 1"),
        ("pool_chunk_bytes = 1000", "power of two"),
        (
            "ms_mapping = \"fastest\"",
            "expected one of round-robin, traffic-aware, shared, lcam, handoff, core-affine",
        ),
        ("osd_op_threads = 2\nms_workers = 0", "ms_workers = 0: must be from 2 to 256"),
        ("ms_placement_interval_ms = 0", "ms_placement_interval_ms = 0: "),
        ("ms_placement_interval_ms = 0", "allowed are 1 ms to 3600s"),
        ("ms_lock_threshold = 0.0", "ms_lock_threshold = 0: "),
        ("ms_lock_threshold = 1.5", "above 0 and up to 1"),
        ("ms_lcam_rule = \"printed\"", "expected one of as-printed, damped"),
        ("ms_connections_max = 4000000000", "open files"),
        ("ms_idle_timeout_s = 9", "allowed are 0 and 10 to 86400"),
        ("ms_max_events = \"0\"", "allowed are auto and 1 to 65536"),
        ("ms_class_weights = \"I=64,II=64,III=0\"", "class III (background) is 0"),
        ("ms_class_weights = \"I=64,II=1001,III=1\"", "it is 1 to 1000"),
        ("ms_class_weights = \"64,64,16\"", "allowed are off and the weights of all three"),
        ("osd_id = 3", "below osd_count"),
        ("osd_id = 1000\nroles = [\"osd\"]", "below 1000"),
        ("osd_listen = \"0.0.0.0:7411\"", "set osd_advertise"),
        ("mds_listen = \"[::]\"", "set mds_advertise"),
        ("monitor_addr = \"0.0.0.0\"", "monitor_listen may be 0.0.0.0"),
        ("osd_advertise = \"0.0.0.0\"", "an address to dial"),
        ("osd_listen = \"127.0.0.1:65534\"", "at most 65535"),
        (
            "osd_listen = \"127.0.0.1\"\nosd_advertise = \"127.0.0.1:65534\"",
            "osd_advertise = 65534",
        ),
        ("mon_osd_full_ratio = 1.5", "from 0.5 to 0.99"),
        ("mon_osd_nearfull_ratio = 0.1", "from 0.5 to 0.99"),
        ("mon_osd_backfillfull_ratio = 0.96", "at most mon_osd_full_ratio, which is 0.95"),
        (
            "mon_osd_full_ratio = 0.8\nmon_osd_backfillfull_ratio = 0.9",
            "at most mon_osd_full_ratio, which is 0.8",
        ),
        ("mon_osd_nearfull_ratio = 0.91", "at most mon_osd_backfillfull_ratio, which is 0.9"),
        ("osd_objectstore = \"ram\"", "file, memstore"),
        ("osd_objectstore = \"memstore\"\nmemstore_bytes_max = 1000", "from 134217728"),
        ("osd_path_cut = \"pg\"", "none, msgr, msgr+pg"),
        ("osd_path_cut = \"msgr\"", "memstore"),
    ] {
        let error = Config::new(Settings::from_toml(text).unwrap()).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn the_messenger_is_set_like_anything_else() {
    let text = "osd_op_threads = 2\nms_workers = 8\nms_mapping = \"lcam\"\nms_placement_interval_ms = 500\n\
                ms_lock_threshold = 0.2\nms_lcam_rule = \"damped\"\nms_max_events = \"5000\"\nms_idle_timeout_s = 10";
    let config = Config::new(Settings::from_toml(text).unwrap()).unwrap();
    let placement = PlacementConfig {
        mapping: Mapping::Lcam,
        interval: Duration::from_millis(500),
        lock_threshold: 0.2,
        lcam_rule: LcamRule::Damped,
    };
    assert_eq!((config.osd_op_threads, config.ms_workers), (2, 8));
    assert_eq!((config.ms_placement, config.ms_max_events), (placement, MaxEvents::Fixed(5000)));
    assert_eq!(config.ms_idle_timeout, Some(Duration::from_secs(10)));
    let config = Config::new(Settings { osd_op_threads: Some(3), ..Settings::default() }).unwrap();
    assert_eq!((config.ms_workers, config.ms_placement), (3, PlacementConfig::default()));
    assert_eq!(config.ms_idle_timeout, None);
}

#[test]
fn only_the_monitor_needs_the_number_of_storage_daemons() {
    let config = |text: &str| Config::new(Settings::from_toml(text).expect("well-formed"));
    assert_eq!(
        config("roles = [\"osd\"]\nosd_id = 7").expect("complete").osds[0].listen,
        loopback(7417)
    );
    assert!(
        config("roles = [\"osd\"]\nosd_id = 7\nosd_count = 5").is_err(),
        "what is said must fit"
    );
    assert!(
        config("roles = [\"mds\"]\nosd_listen = \"0.0.0.0\"")
            .expect("not its role")
            .osds
            .is_empty()
    );
}

#[test]
fn addresses_are_names_too_and_anything_else_is_told() {
    let settings = Settings::from_toml("monitor_addr = \"node1\"").expect("well-formed");
    let config = Config::new(settings).expect("complete");
    assert_eq!(
        (config.monitor_addr.to_string(), config.monitor_listen.to_string()),
        ("node1".into(), "node1".into())
    );
    let error = Settings::from_toml("monitor_addr = \"node1:x\"").unwrap_err();
    assert!(error.contains("HOST:PORT"), "{error}");
}

#[test]
fn one_osd_listens_on_its_own_port() {
    let config = Config::new(Settings { osd_id: Some(2), ..Settings::default() }).unwrap();
    assert_eq!(config.osds, [OsdPlace { id: 2, listen: loopback(7412), advertise: None }]);
}

#[test]
fn three_data_shards_get_whole_stripes() {
    let settings = Settings { pool_k: Some(3), osd_count: Some(4), ..Settings::default() };
    let profile = Config::new(settings).unwrap().profile;
    assert_eq!(profile.object_bytes() % profile.stripe_bytes(), 0);
}
