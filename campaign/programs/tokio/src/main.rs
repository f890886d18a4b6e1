//! A tokio program: timers, tasks, an echo server at a Unix socket, datagrams, files and a child.

use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixDatagram, UnixListener, UnixStream};

const CLIENTS: usize = 50;
const MESSAGES: usize = 100;

#[tokio::main(flavor = "multi_thread", worker_threads = 4)]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let start = Instant::now();
    let sleeps: Vec<_> = (0..200)
        .map(|i| tokio::spawn(tokio::time::sleep(Duration::from_millis(i % 20))))
        .collect();
    for sleep in sleeps {
        sleep.await?;
    }
    assert!(start.elapsed() >= Duration::from_millis(19));
    let late = tokio::time::timeout(Duration::from_millis(10), std::future::pending::<()>()).await;
    assert!(late.is_err());

    let path = std::env::temp_dir().join(format!("tokio-echo-{}", std::process::id()));
    let listener = UnixListener::bind(&path)?;
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                tokio::io::copy(&mut reader, &mut writer).await
            });
        }
    });
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let path = path.clone();
            tokio::spawn(async move {
                let mut stream = UnixStream::connect(path).await?;
                for message in 0..MESSAGES {
                    let sent = vec![(client + message) as u8; 1 + client * message * 7 % 5000];
                    let mut got = vec![0; sent.len()];
                    let (mut reader, mut writer) = stream.split();
                    let (write, read) =
                        tokio::join!(writer.write_all(&sent), reader.read_exact(&mut got));
                    write?;
                    read?;
                    assert_eq!(sent, got);
                }
                Ok::<_, std::io::Error>(MESSAGES)
            })
        })
        .collect();
    let mut echoed = 0;
    for client in clients {
        echoed += client.await??;
    }
    server.abort();
    tokio::fs::remove_file(&path).await?;

    let (one, other) = UnixDatagram::pair()?;
    let sender = tokio::spawn(async move {
        for i in 0..1000_u32 {
            one.send(&i.to_le_bytes()).await?;
        }
        Ok::<_, std::io::Error>(())
    });
    for i in 0..1000_u32 {
        let mut bytes = [0; 8];
        assert_eq!(other.recv(&mut bytes).await?, 4);
        assert_eq!(bytes[..4], i.to_le_bytes());
    }
    sender.await??;

    if std::env::args().len() == 1 {
        let output = tokio::process::Command::new(std::env::current_exe()?).arg("child").output();
        assert!(output.await?.stdout.starts_with(b"tokio: "));
    }
    println!("tokio: {echoed} messages echoed");
    Ok(())
}
