//! Connections to a name that may have several addresses.

use std::net::SocketAddr;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::sleep;

/// How long one address of a server may be silent before the next one is tried beside it.
const HEAD_START: Duration = Duration::from_millis(250);

/// Connects to a host.
///
/// # Errors
///
/// The name is not known, or none of its addresses can be connected to.
pub async fn connected(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
    first_of(addresses).await
}

/// Connects to the first of these addresses that answers. The next one is tried once one has failed, or beside those that are silent: a
/// dead address does not keep the others from being reached in time.
async fn first_of(addresses: Vec<SocketAddr>) -> std::io::Result<TcpStream> {
    let (mut addresses, mut tries) = (addresses.into_iter(), FuturesUnordered::new());
    let mut last = std::io::Error::new(std::io::ErrorKind::InvalidInput, "the name has no address");
    loop {
        match addresses.next() {
            Some(address) => tries.push(TcpStream::connect(address)),
            None if tries.is_empty() => return Err(last),
            None => {}
        }
        tokio::select! {
            biased;
            Some(tried) = tries.next() => match tried {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            },
            () = sleep(HEAD_START) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};

    #[tokio::test]
    async fn a_dead_address_does_not_keep_the_others_from_being_reached() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        // One waits to be accepted, and there is room for no other: its handshake is not answered.
        let silent = TcpSocket::new_v4().unwrap();
        silent.bind(any).unwrap();
        let silent = silent.listen(0).unwrap();
        let dead = silent.local_addr().unwrap();
        let _waits = TcpStream::connect(dead).await.unwrap();
        // Bound, and nothing listens there.
        let closed = TcpSocket::new_v4().unwrap();
        closed.bind(any).unwrap();
        let refused = closed.local_addr().unwrap();
        let listener = TcpListener::bind(any).await.unwrap();
        let there = listener.local_addr().unwrap();
        for addresses in [vec![there], vec![dead, there], vec![refused, there], vec![dead, refused, there]] {
            let stream = first_of(addresses.clone()).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), there, "{addresses:?}");
        }
        for none in [vec![], vec![refused], vec![refused, refused]] {
            assert!(first_of(none).await.is_err());
        }
    }
}
