//! The options that a client and the server agree on before requests.
//!
//! Contract: pure: [`Handshake::option`] gets an option and says what to send and how it goes on.
//! There is one export; a client asks for it by its name or by none.

use super::wire::*;

/// Longest option, in bytes: an export's name of 4096, and queries.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Most options of one client.
pub const OPTIONS_MAX: usize = 64;

/// What is given out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Nothing may be written.
    pub is_read_only: bool,
    /// Bytes that are best read and written together.
    pub preferred_bytes: u32,
}

/// What was agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Agreed {
    /// Replies are structured.
    pub structured: bool,
    /// The client asks where data is.
    pub allocation: bool,
}

/// How it goes on after an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// With another option.
    Option,
    /// With requests.
    Requests,
    /// Not at all.
    Close,
}

/// See the module.
#[derive(Debug)]
pub struct Handshake<'a> {
    export: &'a Export,
    agreed: Agreed,
    no_zeroes: bool,
}

const FIXED_NEWSTYLE: u16 = 1 << 0;
const NO_ZEROES: u16 = 1 << 1;

const OPT_EXPORT_NAME: u32 = 1;
const OPT_ABORT: u32 = 2;
const OPT_LIST: u32 = 3;
const OPT_INFO: u32 = 6;
const OPT_GO: u32 = 7;
const OPT_STRUCTURED_REPLY: u32 = 8;
const OPT_LIST_META_CONTEXT: u32 = 9;
const OPT_SET_META_CONTEXT: u32 = 10;

const REP_ACK: u32 = 1;
const REP_SERVER: u32 = 2;
const REP_INFO: u32 = 3;
const REP_META_CONTEXT: u32 = 4;
const REP_ERR_UNSUP: u32 = (1 << 31) + 1;
const REP_ERR_INVALID: u32 = (1 << 31) + 3;
const REP_ERR_UNKNOWN: u32 = (1 << 31) + 6;
const REP_ERR_TOO_BIG: u32 = (1 << 31) + 9;

const INFO_EXPORT: u16 = 0;
const INFO_NAME: u16 = 1;
const INFO_DESCRIPTION: u16 = 2;
const INFO_BLOCK_SIZE: u16 = 3;

const BASE: &[u8] = b"base:";
const BASE_ALLOCATION: &[u8] = b"base:allocation";

/// Answers to one option.
struct Replies {
    option: u32,
    out: Vec<u8>,
}

impl Replies {
    fn add(&mut self, kind: u32, data: &[u8]) {
        self.out.extend_from_slice(&REP_MAGIC.to_be_bytes());
        self.out.extend_from_slice(&self.option.to_be_bytes());
        self.out.extend_from_slice(&kind.to_be_bytes());
        self.out.extend_from_slice(
            &u32::try_from(data.len()).expect("answers are short").to_be_bytes(),
        );
        self.out.extend_from_slice(data);
    }
}

impl<'a> Handshake<'a> {
    /// For a client that has just connected.
    pub fn new(export: &'a Export) -> Self {
        Self { export, agreed: Agreed::default(), no_zeroes: false }
    }

    /// What the server says first.
    pub fn greeting() -> [u8; 18] {
        let mut out = [0; 18];
        out[..8].copy_from_slice(&NBDMAGIC.to_be_bytes());
        out[8..16].copy_from_slice(&IHAVEOPT.to_be_bytes());
        out[16..].copy_from_slice(&(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
        out
    }

    /// What the client says first. False if it wants what is not known here.
    pub fn client_flags(&mut self, flags: u32) -> bool {
        self.no_zeroes = flags & u32::from(NO_ZEROES) != 0;
        flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) == 0
    }

    /// What was agreed on.
    pub fn agreed(&self) -> Agreed {
        self.agreed
    }

    /// An option that is longer than [`OPTION_BYTES_MAX`], and was not kept.
    pub fn too_long(option: u32) -> Vec<u8> {
        let mut replies = Replies { option, out: Vec::new() };
        replies.add(REP_ERR_TOO_BIG, b"the option is too long");
        replies.out
    }

    /// An option. What is to be sent, and how it goes on.
    pub fn option(&mut self, option: u32, data: &[u8]) -> (Vec<u8>, Next) {
        let mut replies = Replies { option, out: Vec::new() };
        let next = match option {
            OPT_EXPORT_NAME => return self.export_name(data),
            OPT_ABORT => {
                replies.add(REP_ACK, b"");
                Next::Close
            }
            OPT_LIST if data.is_empty() => {
                let name = self.export.name.as_bytes();
                let len = u32::try_from(name.len()).expect("names are short");
                replies.add(REP_SERVER, &[&len.to_be_bytes(), name].concat());
                replies.add(REP_ACK, b"");
                Next::Option
            }
            OPT_STRUCTURED_REPLY if data.is_empty() => {
                self.agreed.structured = true;
                replies.add(REP_ACK, b"");
                Next::Option
            }
            OPT_LIST | OPT_STRUCTURED_REPLY => {
                replies.add(REP_ERR_INVALID, b"the option has no data");
                Next::Option
            }
            OPT_INFO | OPT_GO => self.info(&mut replies, data),
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => {
                self.meta_context(&mut replies, data);
                Next::Option
            }
            // TLS among them.
            _ => {
                replies.add(REP_ERR_UNSUP, b"the option is not known here");
                Next::Option
            }
        };
        (replies.out, next)
    }

    fn is_ours(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.export.name.as_bytes()
    }

    fn flags(&self) -> u16 {
        use export_flags::*;
        let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN;
        flags |= if self.export.is_read_only {
            READ_ONLY
        } else {
            SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO
        };
        flags | if self.agreed.structured { SEND_DF } else { 0 }
    }

    /// The old way, which has no answer for an export that is not there.
    fn export_name(&self, name: &[u8]) -> (Vec<u8>, Next) {
        if !self.is_ours(name) {
            return (Vec::new(), Next::Close);
        }
        let mut out = Vec::new();
        out.extend_from_slice(&self.export.size.to_be_bytes());
        out.extend_from_slice(&self.flags().to_be_bytes());
        out.extend(std::iter::repeat_n(0, if self.no_zeroes { 0 } else { 124 }));
        (out, Next::Requests)
    }

    fn info(&self, replies: &mut Replies, data: &[u8]) -> Next {
        let Some((name, wanted)) = info_request(data) else {
            replies.add(REP_ERR_INVALID, b"malformed");
            return Next::Option;
        };
        if !self.is_ours(name) {
            replies.add(REP_ERR_UNKNOWN, format!("here is only `{}`", self.export.name).as_bytes());
            return Next::Option;
        }
        let Export { name, size, preferred_bytes, .. } = self.export;
        let (kind, flags) = (INFO_EXPORT.to_be_bytes(), self.flags().to_be_bytes());
        replies.add(REP_INFO, &[&kind[..], &size.to_be_bytes(), &flags].concat());
        let sizes = [1, *preferred_bytes, PAYLOAD_BYTES_MAX].map(u32::to_be_bytes);
        replies.add(REP_INFO, &[&INFO_BLOCK_SIZE.to_be_bytes()[..], &sizes.concat()].concat());
        for wanted in wanted {
            let text = match wanted {
                INFO_NAME => name.clone(),
                INFO_DESCRIPTION => format!("Trefoil volume {name}"),
                _ => continue,
            };
            replies.add(REP_INFO, &[&wanted.to_be_bytes()[..], text.as_bytes()].concat());
        }
        replies.add(REP_ACK, b"");
        if replies.option == OPT_GO { Next::Requests } else { Next::Option }
    }

    fn meta_context(&mut self, replies: &mut Replies, data: &[u8]) {
        let is_set = replies.option == OPT_SET_META_CONTEXT;
        if is_set {
            // Whatever comes of it, it takes the place of what was set before.
            self.agreed.allocation = false;
        }
        let Some((name, queries)) = meta_request(data) else {
            return replies.add(REP_ERR_INVALID, b"malformed");
        };
        if is_set && !self.agreed.structured {
            return replies.add(REP_ERR_INVALID, b"structured replies come first");
        }
        if !self.is_ours(name) {
            return replies.add(REP_ERR_UNKNOWN, b"there is no such export");
        }
        let lists_all = !is_set && queries.is_empty();
        let wants = |query: &&[u8]| *query == BASE_ALLOCATION || !is_set && *query == BASE;
        if lists_all || queries.iter().any(wants) {
            let id = if is_set { ALLOCATION_CONTEXT } else { 0 };
            replies.add(REP_META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION].concat());
            self.agreed.allocation |= is_set;
        }
        replies.add(REP_ACK, b"");
    }
}

/// A string with its length before it.
fn take_string<'d>(input: &mut &'d [u8]) -> Option<&'d [u8]> {
    let len = take_u32(input)?;
    take(input, len as usize)
}

/// The export, and what of it is wanted.
fn info_request(mut data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let input = &mut data;
    let name = take_string(input)?;
    let count = take_u16(input)?;
    let wanted = (0..count).map(|_| take_u16(input)).collect::<Option<Vec<_>>>()?;
    input.is_empty().then_some((name, wanted))
}

/// The export, and queries for contexts.
fn meta_request(mut data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let input = &mut data;
    let name = take_string(input)?;
    let count = take_u32(input)?;
    // Each takes four bytes at least, so that a large number is found to be wrong soon.
    let queries = (0..count).map(|_| take_string(input)).collect::<Option<Vec<_>>>()?;
    input.is_empty().then_some((name, queries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn export() -> Export {
        Export { name: "vm1".into(), size: 1 << 30, is_read_only: false, preferred_bytes: 4096 }
    }

    fn string(text: &[u8]) -> Vec<u8> {
        [&u32::try_from(text.len()).unwrap().to_be_bytes(), text].concat()
    }

    fn meta(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
        let mut out = string(name);
        out.extend_from_slice(&u32::try_from(queries.len()).unwrap().to_be_bytes());
        queries.iter().for_each(|query| out.extend(string(query)));
        out
    }

    /// Kinds and data of answers.
    fn parse(mut out: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let input = &mut out;
        let mut found = Vec::new();
        while !input.is_empty() {
            assert_eq!(take_u64(input), Some(REP_MAGIC));
            take_u32(input).unwrap();
            let kind = take_u32(input).unwrap();
            let len = take_u32(input).unwrap();
            found.push((kind, take(input, len as usize).unwrap().to_vec()));
        }
        found
    }

    #[test]
    fn a_client_that_goes_learns_size_flags_and_block_sizes() {
        let export = export();
        let mut handshake = Handshake::new(&export);
        assert!(handshake.client_flags(3) && !handshake.client_flags(7));
        handshake.option(OPT_STRUCTURED_REPLY, b"");
        let go = [string(b"vm1"), vec![0, 1, 0, 1]].concat();
        let (out, next) = handshake.option(OPT_GO, &go);
        assert_eq!(next, Next::Requests);
        let replies = parse(&out);
        assert_eq!(replies[0].1[..10], [&[0, 0][..], &(1u64 << 30).to_be_bytes()].concat());
        let flags = u16::from_be_bytes(replies[0].1[10..].try_into().unwrap());
        assert_eq!(
            flags & (export_flags::SEND_DF | export_flags::READ_ONLY),
            export_flags::SEND_DF
        );
        assert_eq!(replies[1].1, [0, 3, 0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0]);
        assert_eq!(replies[2].1, b"\0\x01vm1");
        assert_eq!(replies[3], (REP_ACK, Vec::new()));
        let (out, next) = handshake.option(OPT_INFO, &[string(b"other"), vec![0, 0]].concat());
        assert_eq!((parse(&out)[0].0, next), (REP_ERR_UNKNOWN, Next::Option));
    }

    #[test]
    fn the_old_way_has_a_name_or_an_end() {
        let export = Export { is_read_only: true, ..export() };
        let mut handshake = Handshake::new(&export);
        assert_eq!(handshake.option(OPT_EXPORT_NAME, b"other"), (Vec::new(), Next::Close));
        let (out, next) = handshake.option(OPT_EXPORT_NAME, b"");
        assert_eq!((out.len(), next), (134, Next::Requests));
        handshake.client_flags(3);
        let (out, _) = handshake.option(OPT_EXPORT_NAME, b"vm1");
        assert_eq!((out.len(), out[9] & 2), (10, 2), "read-only");
    }

    #[test]
    fn contexts_are_set_after_structured_replies() {
        let export = export();
        let mut handshake = Handshake::new(&export);
        let all = meta(b"", &[b"base:allocation", b"qemu:dirty"]);
        assert_eq!(parse(&handshake.option(OPT_SET_META_CONTEXT, &all).0)[0].0, REP_ERR_INVALID);
        handshake.option(OPT_STRUCTURED_REPLY, b"");
        let replies = parse(&handshake.option(OPT_SET_META_CONTEXT, &all).0);
        assert_eq!(
            replies.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(),
            [REP_META_CONTEXT, REP_ACK]
        );
        assert!(handshake.agreed().allocation);
        handshake.option(OPT_SET_META_CONTEXT, &meta(b"", &[]));
        assert!(!handshake.agreed().allocation, "what was set last counts");
        for queries in [&[][..], &[BASE]] {
            assert_eq!(
                parse(&handshake.option(OPT_LIST_META_CONTEXT, &meta(b"vm1", queries)).0).len(),
                2
            );
        }
    }

    #[test]
    fn what_is_malformed_or_unknown_is_refused_and_the_client_may_go_on() {
        let export = export();
        let mut handshake = Handshake::new(&export);
        let many = [string(b""), vec![0xff; 4]].concat();
        for (option, data, kind) in [
            (OPT_GO, &b""[..], REP_ERR_INVALID),
            (OPT_GO, &[0, 0, 0, 9, 1], REP_ERR_INVALID),
            (OPT_SET_META_CONTEXT, &many, REP_ERR_INVALID),
            (OPT_STRUCTURED_REPLY, b"x", REP_ERR_INVALID),
            (OPT_LIST, b"x", REP_ERR_INVALID),
            (5, b"", REP_ERR_UNSUP),
            (11, b"", REP_ERR_UNSUP),
            (u32::MAX, b"what", REP_ERR_UNSUP),
        ] {
            let (out, next) = handshake.option(option, data);
            assert_eq!((parse(&out)[0].0, next), (kind, Next::Option), "{option}");
        }
        assert_eq!(handshake.option(OPT_ABORT, b"").1, Next::Close);
    }

    proptest! {
        #[test]
        fn no_option_panics(option in 0..12u32, data in proptest::collection::vec(any::<u8>(), 0..200)) {
            let export = export();
            let mut handshake = Handshake::new(&export);
            handshake.option(OPT_STRUCTURED_REPLY, b"");
            handshake.option(option, &data);
        }
    }
}
