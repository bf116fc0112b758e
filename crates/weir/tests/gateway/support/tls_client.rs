//! A TLS client that offers only the chosen TLS versions, cipher suites and ALPN protocols, and
//! reports the negotiated ones.

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

/// Socket timeout: longer than any response takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The settings of a TLS client. All connections of a client share one cache of TLS sessions. A
/// clone also shares it, until a method changes the clone's settings.
#[derive(Clone)]
pub(crate) struct TlsClient {
    /// The trusted authority; `None` accepts any server certificate.
    trusted: Option<CertificateDer<'static>>,
    versions: Vec<&'static rustls::SupportedProtocolVersion>,
    ciphers: Vec<String>,
    alpn: Vec<Vec<u8>>,
    /// The client certificate with its key; `None` for no client authentication.
    identity:
        Option<Arc<(Vec<CertificateDer<'static>>, rustls::pki_types::PrivateKeyDer<'static>)>>,
    /// The configuration that the other fields describe, built at the first connection. All
    /// connections use this one, because rustls resumes a session only with the configuration
    /// that started it.
    cached_config: Arc<OnceLock<Arc<ClientConfig>>>,
}

/// One TLS connection.
pub(crate) struct TlsConnection {
    stream: StreamOwned<ClientConnection, TcpStream>,
}

impl TlsClient {
    /// A client that trusts one authority.
    pub(crate) fn new(authority: &Authority) -> TlsClient {
        TlsClient {
            trusted: Some(authority.der()),
            versions: rustls::ALL_VERSIONS.to_vec(),
            ciphers: Vec::new(),
            alpn: Vec::new(),
            identity: None,
            cached_config: Arc::default(),
        }
    }

    /// A client that accepts any certificate.
    pub(crate) fn accepting_any_certificate() -> TlsClient {
        TlsClient { trusted: None, ..TlsClient::new(&Authority::new("nobody")) }
    }

    pub(crate) fn versions(mut self, versions: &[&str]) -> TlsClient {
        self.cached_config = Arc::default();
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

    /// Offers only these cipher suites, by their names in rustls.
    pub(crate) fn ciphers(mut self, names: &[&str]) -> TlsClient {
        self.cached_config = Arc::default();
        self.ciphers = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    pub(crate) fn alpn(mut self, protocols: &[&str]) -> TlsClient {
        self.cached_config = Arc::default();
        self.alpn = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        self
    }

    /// Authenticates with this client certificate.
    pub(crate) fn with_identity(mut self, identity: &Identity) -> TlsClient {
        self.cached_config = Arc::default();
        self.identity = Some(Arc::new((identity.chain.clone(), identity.key())));
        self
    }

    fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(self.cached_config.get_or_init(|| self.build_config()))
    }

    fn build_config(&self) -> Arc<ClientConfig> {
        let mut provider = aws_lc_rs::default_provider();
        if !self.ciphers.is_empty() {
            let is_chosen = |suite: &rustls::SupportedCipherSuite| {
                let name = suite.suite();
                self.ciphers.iter().any(|chosen| Some(chosen.as_str()) == name.as_str())
            };
            provider.cipher_suites.retain(is_chosen);
            assert_eq!(provider.cipher_suites.len(), self.ciphers.len());
        }
        // rustls rejects a version without a cipher suite.
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
        let mut config = match self.identity.as_deref() {
            Some((chain, key)) => {
                builder.with_client_auth_cert(chain.clone(), key.clone_key()).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.alpn.clone();
        config.resumption = Resumption::in_memory_sessions(256);
        Arc::new(config)
    }

    /// Connects and completes the client's handshake.
    pub(crate) fn connect(&self, address: &str, name: &str) -> io::Result<TlsConnection> {
        self.connect_after_sending(address, name, b"")
    }

    /// Like [`TlsClient::connect`], but first sends `start` in plain text. It can be a header of
    /// the PROXY protocol.
    pub(crate) fn connect_after_sending(
        &self,
        address: &str,
        name: &str,
        start: &[u8],
    ) -> io::Result<TlsConnection> {
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
        Ok(TlsConnection { stream })
    }

    /// The bytes of this client's first `ClientHello`.
    pub(crate) fn client_hello(&self, name: &str) -> Vec<u8> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut session = ClientConnection::new(self.config(), name).unwrap();
        let mut hello = Vec::new();
        session.write_tls(&mut hello).unwrap();
        hello
    }

    /// Sends the same POST request several times concurrently over one HTTP/2 connection. Returns
    /// the bodies of the responses.
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

impl TlsConnection {
    pub(crate) fn version(&self) -> ProtocolVersion {
        self.stream.conn.protocol_version().unwrap()
    }

    pub(crate) fn cipher_suite(&self) -> String {
        let suite = self.stream.conn.negotiated_cipher_suite().unwrap().suite();
        suite.as_str().unwrap().to_owned()
    }

    pub(crate) fn handshake_kind(&self) -> HandshakeKind {
        self.stream.conn.handshake_kind().unwrap()
    }

    pub(crate) fn alpn(&self) -> Option<String> {
        let agreed = self.stream.conn.alpn_protocol();
        agreed.map(|protocol| String::from_utf8(protocol.to_vec()).unwrap())
    }

    pub(crate) fn server_certificate(&self) -> CertificateDer<'static> {
        self.stream.conn.peer_certificates().unwrap()[0].clone()
    }

    /// Sends a GET request, reads the response, and returns its header section. Returns `None` if
    /// the connection ends first.
    pub(crate) fn try_get(&mut self) -> Option<String> {
        let head = self.request_head(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
        self.read_body(&head).ok()?;
        Some(head)
    }

    /// Sends a request and returns the header section of the response.
    pub(crate) fn request_head(&mut self, request: &[u8]) -> io::Result<String> {
        self.stream.write_all(request)?;
        self.read_head()
    }

    pub(crate) fn get(&mut self) -> String {
        self.try_get().expect("the server responds")
    }

    /// Sends a POST request and returns the body of the response.
    pub(crate) fn post(&mut self, body: &[u8]) -> Vec<u8> {
        self.stream.write_all(&raw::post("/", body)).unwrap();
        let head = self.read_head().unwrap();
        self.read_body(&head).unwrap()
    }

    /// Reads the body of the response with this header section.
    fn read_body(&mut self, head: &str) -> io::Result<Vec<u8>> {
        let head = head.to_ascii_lowercase();
        let (_, length) = head.split_once("content-length: ").unwrap();
        let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }

    /// Returns everything that the server sends until it closes the connection.
    pub(crate) fn read_to_end(&mut self) -> io::Result<String> {
        let mut rest = String::new();
        self.stream.read_to_string(&mut rest)?;
        Ok(rest)
    }

    fn read_head(&mut self) -> io::Result<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        Ok(String::from_utf8(head).unwrap())
    }

    /// True if the server has closed the connection, with or without a TLS `close_notify`.
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

/// Accepts any server certificate.
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
