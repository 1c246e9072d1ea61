//! An iSNS server's bytes, over the connection of the registration, over one of its own and in datagrams: the client goes on,
//! answers with whole messages, and tells people nothing that could spoil a log. A search that gets the same answers ends.

use std::time::Duration;

use lunette_isns::{Client, Message, News, Node, Reader, Registration, Search, SearchStep, Step};

use super::Input;

/// The longest message that a client sends: a header and what 16 bits can say.
const MESSAGE_MAX: usize = 12 + 0xfffc;

/// Feeds a client.
///
/// # Panics
/// The client does what it must not do.
pub fn isns(data: &[u8]) {
    let mut input = Input(data);
    let search = Some(Search::begin("iqn.a:me").0);
    let mut world = World { client: Client::default(), search, now: Duration::ZERO, is_connected: false };
    let (mut own, mut other) = (Reader::default(), Reader::default());
    while !input.is_empty() {
        world.settle();
        match input.byte() % 5 {
            0 => world.now += Duration::from_secs(input.byte().into()),
            1 => {
                if world.is_connected && !world.take(&mut own, input.bytes_of_length()) {
                    world.client.failed(world.now);
                    (world.is_connected, own) = (false, Reader::default());
                }
            }
            2 => {
                if !world.take(&mut other, input.bytes_of_length()) {
                    other = Reader::default();
                }
            }
            3 => {
                if let Ok(message) = Message::from_datagram(input.bytes_of_length()) {
                    world.take_message(message);
                }
            }
            _ => world.client.leave(),
        }
    }
}

impl<'a> Input<'a> {
    fn bytes_of_length(&mut self) -> &'a [u8] {
        let length = u16::from_be_bytes(self.array());
        self.bytes(length.into())
    }
}

struct World {
    client: Client,
    /// Until it has an end.
    search: Option<Search>,
    now: Duration,
    is_connected: bool,
}

impl World {
    /// Does what the client wants until it waits.
    fn settle(&mut self) {
        for turn in 0.. {
            assert!(turn < 4, "busy without an end");
            match self.client.next(self.now) {
                Step::Connect => {
                    self.is_connected = true;
                    self.client.connected(registration(), self.now);
                }
                Step::Send(bytes) => assert_whole(&bytes),
                Step::Disconnect => self.is_connected = false,
                Step::Wait(until) => {
                    assert!(until > self.now, "a wait that is over");
                    return;
                }
                Step::End => return,
            }
        }
    }

    /// Takes what came; whether more can be read.
    fn take(&mut self, reader: &mut Reader, bytes: &[u8]) -> bool {
        reader.extend(bytes);
        loop {
            match reader.message() {
                Ok(Some(message)) => self.take_message(message),
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    fn take_message(&mut self, message: Message) {
        let news = match message {
            Message::Response(response) => {
                match self.search.as_mut().map(|search| search.received(&response)) {
                    Some(SearchStep::Send(bytes)) => assert_whole(&bytes),
                    Some(SearchStep::Wait) | None => {}
                    Some(SearchStep::Refused(status)) => {
                        assert_ne!(status, 0);
                        self.search = None;
                    }
                    Some(SearchStep::Done(found)) => {
                        assert!(found.iter().all(|target| (1..=255).contains(&target.name.len())));
                        self.search = None;
                    }
                }
                self.client.received(&response, self.now).into_iter().collect()
            }
            Message::Request(request) => {
                let (answer, news) = self.client.asked(&request);
                answer.iter().for_each(|answer| assert_whole(answer));
                news
            }
        };
        assert!(news.len() <= 20, "as much news as people can read");
        for news in news {
            if let News::Changed { node, .. } = news {
                assert!(node.len() <= 255 && !node.chars().any(char::is_control), "{node:?}");
            }
        }
    }
}

fn assert_whole(bytes: &[u8]) {
    assert!((12..=MESSAGE_MAX).contains(&bytes.len()));
    assert_eq!(bytes.len() - 12, usize::from(u16::from_be_bytes([bytes[4], bytes[5]])));
}

fn registration() -> Registration {
    let portal = ([127, 0, 0, 1], 3260).into();
    let node = |name: &str| Node { name: name.into(), alias: None, portals: vec![(portal, 1)] };
    Registration {
        entity: "e".into(),
        period_s: 120,
        nodes: vec![node("iqn.a:1"), node("iqn.a:2")],
        listeners: vec![([127, 0, 0, 1], 4000).into()],
        ..Registration::default()
    }
}
