//! Every page, its dialogs and the login, in light and dark, wide and narrow.

use super::Script;
use super::world::World;

#[test]
#[ignore = "needs foreign programs"]
fn every_page_is_accessible_quiet_and_has_the_roles_on_file() {
    let world = World::start();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dashboard/outlines.json");
    let said = Script::start("look", &[&world.address(), &world.operator, file]).finish();
    assert_eq!(said["visited"], 13 * 4);
    let dialogs = said["dialogs"].as_array().unwrap();
    assert!(dialogs.len() == 1 && dialogs[0].as_u64() >= Some(30), "{dialogs:?}");
}
