use std::collections::BTreeSet;

use tokio::time::sleep;

use super::*;
use crate::cluster::fake::{DRIVER, Fake, Fault, NODE};
use crate::device::example::mk_uuid;

const HOUR: Duration = Duration::from_secs(3600);

/// A server with claims, and what writes their status.
struct Scene {
    fake: Fake,
    statuses: ClaimStatuses,
    prepared: Arc<Mutex<BTreeSet<ClaimUid>>>,
}

// === impl Scene ===

impl Scene {
    fn new(claims: &[&str]) -> Self {
        let fake = Fake::new();
        fake.change(|state| state.claims = claims.iter().map(|claim| (path(claim), json!({}))).collect());
        let prepared = Arc::<Mutex<BTreeSet<ClaimUid>>>::default();
        let still = Arc::clone(&prepared);
        let (statuses, task) = ClaimStatuses::new(fake.cluster(), move |uid| still.lock().unwrap().contains(uid));
        tokio::spawn(task);
        Self { fake, statuses, prepared }
    }

    fn prepare(&self, claim: &str) {
        self.prepared.lock().unwrap().insert(named(claim).1);
        self.tell_prepared(claim);
    }

    fn tell_prepared(&self, claim: &str) {
        let (name, uid) = named(claim);
        let status = DeviceStatus {
            pool: NODE.to_owned(),
            device: "gpu-0".to_owned(),
            share_id: None,
            gpu: mk_uuid(0),
            mig: None,
        };
        self.statuses.prepared(&name, &uid, &self.devices(claim), &[status]);
    }

    fn unprepare(&self, claim: &str) {
        let (name, uid) = named(claim);
        self.prepared.lock().unwrap().remove(&uid);
        self.statuses.unprepared(&name, &uid);
    }

    /// What the status of a claim says.
    fn devices(&self, claim: &str) -> Vec<Value> {
        self.fake.look(|state| {
            let devices = state.claims.get(&path(claim)).and_then(|claim| claim["status"]["devices"].as_array());
            devices.cloned().unwrap_or_default()
        })
    }

    fn attempts(&self) -> usize {
        self.fake.look(|state| state.count("PATCH "))
    }

    fn answer(&self, code: u16) {
        self.fake.on_request(move |_, line| {
            line.starts_with("PATCH").then_some(Fault::Answer { code, headers: &[], body: "" })
        });
    }
}

fn path(claim: &str) -> String {
    format!("namespaces/team/resourceclaims/{claim}")
}

fn named(claim: &str) -> (ClaimName, ClaimUid) {
    let name = ClaimName { namespace: "team".to_owned(), name: claim.to_owned() };
    (name, ClaimUid::parse(claim).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_written_when_it_is_prepared_and_when_it_is_not_any_more_and_not_in_between() {
    let scene = Scene::new(&["a"]);
    scene.prepare("a");
    sleep(HOUR).await;
    let [entry] = scene.devices("a").try_into().unwrap();
    assert_eq!((&entry["driver"], &entry["data"]["uuid"]), (&json!(DRIVER), &json!(mk_uuid(0).as_str())));
    assert_eq!(scene.fake.look(|state| state.applied[0]["metadata"].clone()), json!({"name": "a", "uid": "a"}));
    scene.prepare("a");
    sleep(HOUR).await;
    assert_eq!((scene.attempts(), scene.devices("a")), (1, vec![entry]));
    scene.unprepare("a");
    sleep(HOUR).await;
    assert_eq!((scene.attempts(), scene.devices("a")), (2, Vec::new()));
    assert_eq!(scene.fake.look(|state| state.applied[1].get("status").cloned()), None);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_prepared_again_before_its_entries_are_removed_keeps_them() {
    let scene = Scene::new(&["a"]);
    scene.prepare("a");
    sleep(HOUR).await;
    scene.fake.on_request(|_, line| line.starts_with("PATCH").then_some(Fault::Refuse));
    scene.unprepare("a");
    sleep(Duration::from_secs(5)).await;
    scene.prepare("a");
    scene.fake.on_request(|_, _| None);
    sleep(HOUR).await;
    assert_eq!(scene.devices("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_unprepared_before_its_turn_is_never_said_to_be_prepared() {
    let scene = Scene::new(&["a"]);
    scene.fake.on_request(|_, line| line.starts_with("PATCH").then_some(Fault::Refuse));
    scene.prepare("a");
    sleep(Duration::from_secs(5)).await;
    // As when the prepare and the unprepare end at the same time, and the prepare tells of it last.
    scene.unprepare("a");
    scene.tell_prepared("a");
    scene.fake.on_request(|_, _| None);
    sleep(HOUR).await;
    assert!(scene.fake.look(|state| state.applied.iter().all(|applied| applied.get("status").is_none())));
    assert!(scene.devices("a").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_has_few_requests_to_answer_and_other_claims_have_their_turn() {
    let claims = ["a", "b", "c", "d", "e", "f"];
    let scene = Scene::new(&claims);
    scene.fake.on_request(|_, line| (line.starts_with("PATCH") && !line.contains("/f/")).then_some(Fault::Hang));
    for claim in claims {
        scene.prepare(claim);
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(scene.attempts(), AT_ONCE);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(scene.devices("f").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_may_pass_is_tried_again_but_not_for_ever_and_what_may_not_is_left() {
    for (code, attempts) in [(403, 1), (422, 1), (400, 1), (409, ATTEMPTS), (429, ATTEMPTS), (500, ATTEMPTS)] {
        let scene = Scene::new(&["a"]);
        scene.answer(code);
        scene.prepare("a");
        sleep(HOUR).await;
        assert_eq!(scene.attempts(), attempts, "{code}");
        // The next prepare tries anew.
        scene.fake.on_request(|_, _| None);
        scene.prepare("a");
        sleep(HOUR).await;
        assert_eq!(scene.devices("a").len(), 1, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_gone_is_left_and_a_server_of_another_version_is_asked_in_that_version() {
    let scene = Scene::new(&["a"]);
    scene.prepare("gone");
    sleep(HOUR).await;
    assert_eq!(scene.attempts(), 1);
    scene.prepare("a");
    sleep(HOUR).await;
    scene.fake.change(|state| state.served = vec!["v1beta1"]);
    scene.unprepare("a");
    sleep(HOUR).await;
    let last = scene.fake.look(|state| state.applied.last().cloned()).unwrap();
    assert_eq!((&last["apiVersion"], scene.devices("a").len()), (&json!("resource.k8s.io/v1beta1"), 0));
}

#[test]
fn the_name_of_a_field_manager_tells_nodes_apart_and_is_never_too_long() {
    assert_eq!(field_manager(DRIVER, NODE), "gpu.nvidia.com/node-a");
    let [one, other] = ["a", "b"].map(|end| field_manager(&"d".repeat(63), &format!("{}{end}", "n".repeat(252))));
    assert!(one.len() <= MAX_MANAGER && one != other, "{one} {other}");
}
