//! S3.

use stores::s3::{S3, S3Options};
use stores::{Result, Server as _, Stores};
use tests::scripted_server::{ScriptedResponse, ScriptedServer};
use tests::servers;

use super::Stage;
use super::embedded::Folder;

/// A bucket, with a data folder for the other stores.
struct Bucket {
    s3: S3,
    folder: Folder,
}

fn options() -> S3Options {
    S3Options {
        bucket: "backstitch".to_owned(),
        prefix: "some/folder".to_owned(),
        endpoint: format!("http://{}", servers::s3()),
        region: "us-east-1".to_owned(),
        access_key_id: "test".to_owned(),
        secret_access_key: "test".to_owned().into(),
        ..S3Options::default()
    }
}

impl Stage for Bucket {
    async fn create() -> Self {
        let s3 = S3::new(&options(), &servers::namespace()).expect("a client");
        assert_eq!(s3.migrate().await.expect("a bucket").len(), 1, "it is new");
        Self {
            s3,
            folder: Folder::create().await,
        }
    }

    async fn ports(&self) -> Result<Stores> {
        Ok(Stores {
            archive: self.s3.archive(),
            ..self.folder.ports().await?
        })
    }
}

super::laws_of! { Bucket; archive }

/// The bucket is created once; diagnostics are empty afterwards.
#[tokio::test]
async fn a_bucket_is_created_once() -> Result<()> {
    let s3 = S3::new(&options(), &servers::namespace())?;
    let diagnostics = s3.diagnostics().await?;
    assert!(
        diagnostics[0].contains("backstitch migrate"),
        "{diagnostics:?}"
    );
    let error = s3.archive().put("a", "x".into()).await;
    let error = error.expect_err("a missing bucket").to_string();
    assert!(error.contains("backstitch migrate"), "{error}");
    assert_eq!(s3.migrate().await?.len(), 1);
    assert_eq!(s3.migrate().await?, Vec::<String>::new());
    assert_eq!(s3.diagnostics().await?, Vec::<String>::new());
    Ok(())
}

/// An object that is larger than one part is read back completely.
#[tokio::test]
async fn large_objects_are_read_completely() -> Result<()> {
    let bucket = Bucket::create().await;
    let archive = bucket.s3.archive();
    let bytes: Vec<u8> = (0..40_000_000_u32).map(|n| (n % 251) as u8).collect();
    archive.put("large", bytes.clone().into()).await?;
    let read_back = archive.get("large").await?.expect("the object");
    assert!(read_back == bytes, "{} bytes came back", read_back.len());
    Ok(())
}

/// A retried create that finds its own object succeeds.
#[tokio::test]
async fn a_retried_create_succeeds() -> Result<()> {
    use stores::archive::Created;
    let bucket = Bucket::create().await;
    let archive = bucket.s3.archive();
    assert_eq!(archive.create("m", "mine".into()).await?, Created::New);
    assert_eq!(archive.create("m", "mine".into()).await?, Created::New);
    assert_eq!(archive.create("m", "other".into()).await?, Created::Exists);
    Ok(())
}

/// The error of an unreachable server names its address, and no call waits forever.
#[tokio::test]
async fn an_unreachable_server_is_named() {
    let options = S3Options {
        endpoint: "http://127.0.0.1:1".to_owned(),
        retry_timeout_ms: 200,
        ..options()
    };
    let s3 = S3::new(&options, &servers::namespace()).expect("a client");
    for error in [
        s3.archive()
            .get("a")
            .await
            .expect_err("an unreachable server"),
        s3.diagnostics().await.expect_err("an unreachable server"),
    ] {
        assert_eq!(error.kind(), stores::ErrorKind::Retry);
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
        assert!(error.to_string().contains("refused"), "{error}");
        assert!(!error.to_string().contains("Signature"), "{error}");
    }
}

const OWNED_BY_US: &str = "<Error><Code>BucketAlreadyOwnedByYou</Code></Error>";
const OWNED_BY_OTHER: &str = "<Error><Code>BucketAlreadyExists</Code></Error>";
const ABORTED: &str = "<Error><Code>OperationAborted</Code></Error>";

/// A bucket is created, exists, or belongs to another account. A bucket that was not created is
/// never reported as created.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_of_another_account_is_refused() {
    const NO_BUCKET: ScriptedResponse = ("HEAD", 404, "");
    let cases: [(
        &'static [ScriptedResponse],
        std::result::Result<usize, &str>,
    ); 8] = [
        (&[("HEAD", 200, "")], Ok(0)),
        (&[NO_BUCKET, ("PUT", 200, "")], Ok(1)),
        (
            &[NO_BUCKET, ("PUT", 409, OWNED_BY_US), ("HEAD", 200, "")],
            Ok(0),
        ),
        (
            &[NO_BUCKET, ("PUT", 409, OWNED_BY_OTHER), ("HEAD", 200, "")],
            Ok(0),
        ),
        (
            &[NO_BUCKET, ("PUT", 409, OWNED_BY_OTHER), ("HEAD", 403, "")],
            Err("has another owner; use another name"),
        ),
        (
            &[
                NO_BUCKET,
                ("PUT", 409, ABORTED),
                NO_BUCKET,
                ("PUT", 200, ""),
            ],
            Ok(1),
        ),
        (&[("HEAD", 403, "")], Err("use another bucket, or check")),
        (
            &[
                NO_BUCKET,
                ("PUT", 403, "<Error><Code>AccessDenied</Code></Error>"),
            ],
            Err("AccessDenied); create the bucket"),
        ),
    ];
    for (script, expected) in cases {
        let server = ScriptedServer::new(script);
        let options = S3Options {
            endpoint: server.address.clone(),
            ..options()
        };
        let s3 = S3::new(&options, &servers::namespace()).expect("a client");
        let created = s3.migrate().await;
        match (created, expected) {
            (Ok(created), Ok(expected)) => assert_eq!(created.len(), expected, "{script:?}"),
            (Err(error), Err(expected)) => {
                assert_eq!(error.kind(), stores::ErrorKind::Fatal, "{error}");
                assert!(error.to_string().contains(expected), "{error}");
            }
            (created, _) => panic!("{script:?}: {created:?}"),
        }
        server.end();
    }
}

/// A create that is refused because of a concurrent failed create is retried, and no bucket is
/// reported missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_beside_a_failed_one_succeeds() -> Result<()> {
    use stores::archive::Created;
    const CONFLICT: ScriptedResponse = (
        "PUT",
        409,
        "<Error><Code>ConditionalRequestConflict</Code></Error>",
    );
    const NO_KEY: ScriptedResponse = ("GET", 404, "<Error><Code>NoSuchKey</Code></Error>");
    let scripts: [(&'static [ScriptedResponse], Created); 3] = [
        (
            &[CONFLICT, NO_KEY, CONFLICT, NO_KEY, ("PUT", 200, "")],
            Created::New,
        ),
        (&[CONFLICT, ("GET", 200, "mine")], Created::New),
        (
            &[CONFLICT, NO_KEY, ("PUT", 412, ""), ("GET", 200, "other")],
            Created::Exists,
        ),
    ];
    for (script, expected) in scripts {
        let server = ScriptedServer::new(script);
        let options = S3Options {
            endpoint: server.address.clone(),
            ..options()
        };
        let archive = S3::new(&options, &servers::namespace())?.archive();
        assert_eq!(archive.create("m", "mine".into()).await?, expected);
        server.end();
    }
    Ok(())
}
