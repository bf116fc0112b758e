//! A TLS client with exact offers, which reports the negotiated parameters.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, ProtocolVersion,
    RootCertStore, SignatureScheme, StreamOwned,
};

use crate::support::authority::{Authority, Identity};
use test_support::raw;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a client is like; its clones and all its connections share sessions.
#[derive(Clone)]
pub(crate) struct Guest {
    trusted: Option<CertificateDer<'static>>,
    versions: Vec<&'static rustls::SupportedProtocolVersion>,
    ciphers: Vec<String>,
    alpn: Vec<Vec<u8>>,
    shown: Option<Arc<(Vec<CertificateDer<'static>>, rustls::pki_types::PrivateKeyDer<'static>)>>,
    /// What follows from the rest, made at the first connection: rustls resumes a session only
    /// under the very configuration that it began under.
    made: Arc<OnceLock<Arc<ClientConfig>>>,
}

/// One connection.
pub(crate) struct Talk {
    stream: StreamOwned<ClientConnection, TcpStream>,
}

impl Guest {
    /// One that trusts an authority.
    pub(crate) fn new(authority: &Authority) -> Guest {
        Guest {
            trusted: Some(authority.der()),
            versions: rustls::ALL_VERSIONS.to_vec(),
            ciphers: Vec::new(),
            alpn: Vec::new(),
            shown: None,
            made: Arc::default(),
        }
    }

    /// One that takes any certificate.
    pub(crate) fn trusting() -> Guest {
        Guest { trusted: None, ..Guest::new(&Authority::new("nobody")) }
    }

    pub(crate) fn versions(mut self, versions: &[&str]) -> Guest {
        self.made = Arc::default();
        self.versions = versions
            .iter()
            .map(|version| match *version {
                "1.2" => &rustls::version::TLS12,
                "1.3" => &rustls::version::TLS13,
                other => panic!("no version {other}"),
            })
            .collect();
        self
    }

    /// By rustls's names.
    pub(crate) fn ciphers(mut self, names: &[&str]) -> Guest {
        self.made = Arc::default();
        self.ciphers = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    pub(crate) fn alpn(mut self, protocols: &[&str]) -> Guest {
        self.made = Arc::default();
        self.alpn = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        self
    }

    pub(crate) fn showing(mut self, identity: &Identity) -> Guest {
        self.made = Arc::default();
        self.shown = Some(Arc::new((identity.chain.clone(), identity.key())));
        self
    }

    fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(self.made.get_or_init(|| self.make()))
    }

    fn make(&self) -> Arc<ClientConfig> {
        let mut provider = aws_lc_rs::default_provider();
        if !self.ciphers.is_empty() {
            let named = |suite: &rustls::SupportedCipherSuite| {
                let name = suite.suite();
                self.ciphers.iter().any(|own| Some(own.as_str()) == name.as_str())
            };
            provider.cipher_suites.retain(named);
            assert_eq!(provider.cipher_suites.len(), self.ciphers.len());
        }
        // A version without a suite cannot be offered.
        let suites = provider.cipher_suites.clone();
        let versions: Vec<_> = self
            .versions
            .iter()
            .filter(|version| suites.iter().any(|suite| suite.version() == **version))
            .copied()
            .collect();
        let provider = Arc::new(provider);
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .unwrap();
        let builder = match &self.trusted {
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.clone()).unwrap();
                builder.with_root_certificates(roots)
            }
            None => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate { provider })),
        };
        let mut config = match &self.shown {
            Some(shown) => {
                builder.with_client_auth_cert(shown.0.clone(), shown.1.clone_key()).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.alpn.clone();
        config.resumption = Resumption::in_memory_sessions(256);
        Arc::new(config)
    }

    /// Connects and completes the client's handshake.
    pub(crate) fn connect(&self, address: &str, name: &str) -> io::Result<Talk> {
        self.connect_behind(address, name, b"")
    }

    /// The same on a connection that begins with these bytes.
    pub(crate) fn connect_behind(
        &self,
        address: &str,
        name: &str,
        start: &[u8],
    ) -> io::Result<Talk> {
        let mut tcp = TcpStream::connect(address)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        tcp.set_write_timeout(Some(PATIENCE))?;
        tcp.write_all(start)?;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let session = ClientConnection::new(self.config(), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(session, tcp);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Talk { stream })
    }

    /// What it says first.
    pub(crate) fn hello(&self, name: &str) -> Vec<u8> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut session = ClientConnection::new(self.config(), name).unwrap();
        let mut hello = Vec::new();
        session.write_tls(&mut hello).unwrap();
        hello
    }

    /// Posts a body several times concurrently over one HTTP/2 connection; returns the responses'
    /// bodies.
    pub(crate) async fn post_http2(
        &self,
        address: &str,
        name: &str,
        body: Vec<u8>,
        times: usize,
    ) -> Vec<Vec<u8>> {
        let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(self.config());
        let server_name = ServerName::try_from(name.to_owned()).unwrap();
        let stream = connector.connect(server_name, tcp).await.unwrap();
        let executor = hyper_util::rt::TokioExecutor::new();
        let io = hyper_util::rt::TokioIo::new(stream);
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(executor, io).await.unwrap();
        tokio::spawn(connection);
        let mut waiting = Vec::new();
        for _ in 0..times {
            let request = hyper::Request::post(format!("https://{name}/"))
                .header("content-type", "application/json")
                .body(Full::<hyper::body::Bytes>::from(body.clone()))
                .unwrap();
            waiting.push(sender.send_request(request));
        }
        let mut answers = Vec::new();
        for answer in waiting {
            let answer: hyper::Response<hyper::body::Incoming> = answer.await.unwrap();
            assert_eq!(answer.status(), 200);
            answers.push(answer.into_body().collect().await.unwrap().to_bytes().to_vec());
        }
        answers
    }
}

impl Talk {
    pub(crate) fn version(&self) -> ProtocolVersion {
        self.stream.conn.protocol_version().unwrap()
    }

    pub(crate) fn suite(&self) -> String {
        let suite = self.stream.conn.negotiated_cipher_suite().unwrap().suite();
        suite.as_str().unwrap().to_owned()
    }

    pub(crate) fn kind(&self) -> HandshakeKind {
        self.stream.conn.handshake_kind().unwrap()
    }

    pub(crate) fn alpn(&self) -> Option<String> {
        let agreed = self.stream.conn.alpn_protocol();
        agreed.map(|protocol| String::from_utf8(protocol.to_vec()).unwrap())
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.stream.conn.peer_certificates().unwrap()[0].clone()
    }

    /// The head of the answer to a GET; `None` if the connection ends instead.
    pub(crate) fn try_get(&mut self) -> Option<String> {
        self.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()
    }

    /// The head of the answer to a request.
    pub(crate) fn ask(&mut self, request: &[u8]) -> io::Result<String> {
        self.stream.write_all(request)?;
        self.head()
    }

    pub(crate) fn get(&mut self) -> String {
        self.try_get().expect("it answers")
    }

    /// The body of the answer to a POST.
    pub(crate) fn post(&mut self, body: &[u8]) -> Vec<u8> {
        self.stream.write_all(&raw::post("/", body)).unwrap();
        let head = self.head().unwrap().to_ascii_lowercase();
        let (_, length) = head.split_once("content-length: ").unwrap();
        let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        body
    }

    /// Returns everything that the server sends until it closes the connection.
    pub(crate) fn rest(&mut self) -> io::Result<String> {
        let mut rest = String::new();
        self.stream.read_to_string(&mut rest)?;
        Ok(rest)
    }

    fn head(&mut self) -> io::Result<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        Ok(String::from_utf8(head).unwrap())
    }

    /// Whether the other side has ended the connection, with or without a farewell.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(bytes) => bytes == 0,
            Err(error) => {
                matches!(
                    error.kind(),
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
                )
            }
        }
    }
}

/// Takes any certificate.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
