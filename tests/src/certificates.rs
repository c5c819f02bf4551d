//! Certificates of servers that tests start, made by `openssl`.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A folder with `server.key` and `server.pem`, a certificate for the address 127.0.0.1 that `ca.pem` has
/// signed; `both.pem` is key and certificate in one. `other.pem` is an authority that has signed nothing,
/// and `names` a file without any certificate.
#[derive(Debug)]
pub struct Certificates(TempDir);

impl Certificates {
    /// Makes them.
    ///
    /// # Panics
    /// If `openssl` is not there.
    #[must_use]
    pub fn make() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let make = Self(folder);
        std::fs::write(make.file("names"), "subjectAltName=IP:127.0.0.1\n").expect("writing");
        for authority in ["ca", "other"] {
            make.openssl(&format!(
                "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={authority} -keyout {authority}.key -out {authority}.pem"
            ));
        }
        make.openssl(
            "req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out server.csr",
        );
        make.openssl(
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem",
        );
        let read = |name: &str| std::fs::read(make.file(name)).expect("reading");
        let both = [read("server.key"), read("server.pem")].concat();
        std::fs::write(make.file("both.pem"), both).expect("writing");
        make
    }

    /// Where they are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// The path of one of the files.
    #[must_use]
    pub fn file(&self, name: &str) -> String {
        self.0.path().join(name).to_string_lossy().into_owned()
    }

    fn openssl(&self, arguments: &str) {
        let ran = Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(self.0.path())
            .output()
            .expect("openssl");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{said}");
    }
}
