//! The receiving half: from a byte stream, split anywhere, to segments.

use super::crc;
use super::fault::{WireFault, codes};
use super::fpdu::{CRC_LEN, crc_bytes, pad_len};
use super::{Header, MPA_LEN, TAGGED_LEN};

/// Payload of a segment from which on it is large: more than a packet of 9000 bytes
/// brings. A call for each of those costs more than to copy them.
pub(crate) const LARGE: usize = 9 * 1024;
/// So many segments after a large one another is expected: messages come in
/// several, and small messages go with large ones.
const EXPECTED: u8 = 16;

/// Where segments go and what is done with them. Calls come in the order
/// `start`, any number of `place` and `advance`, `finish`; or there is just
/// `segment`.
pub trait Sink {
    /// A segment starts. Everything its header says is checked here.
    ///
    /// # Errors
    /// A broken rule; the connection ends.
    fn start(&mut self, header: &Header) -> Result<(), WireFault>;

    /// Memory for the rest of the payload of the segment that was started:
    /// `remaining` bytes.
    ///
    /// # Errors
    /// When the memory is not there any more.
    fn place(&mut self, remaining: usize) -> Result<&mut [u8], WireFault>;

    /// So many bytes were put at the start of what `place` gave.
    fn advance(&mut self, len: usize);

    /// The segment is whole and its CRC was right.
    ///
    /// # Errors
    /// A broken rule; the connection ends.
    fn finish(&mut self, header: &Header) -> Result<(), WireFault>;

    /// A segment that is there from its first byte to its last one, and whose
    /// CRC is right: does what the other calls would.
    ///
    /// # Errors
    /// A broken rule; the connection ends.
    fn segment(&mut self, header: &Header, payload: &[u8]) -> Result<(), WireFault> {
        in_parts(self, header, payload)
    }
}

/// A whole segment by the calls for one that comes in parts.
#[inline(never)]
pub(crate) fn in_parts(
    sink: &mut (impl Sink + ?Sized),
    header: &Header,
    payload: &[u8],
) -> Result<(), WireFault> {
    sink.start(header)?;
    if !payload.is_empty() {
        put(sink, payload.len(), payload)?;
    }
    sink.finish(header)
}

/// Receives FPDUs. Keeps a header's worth of bytes and no more, however the
/// stream is split.
#[derive(Debug)]
pub struct Rx {
    /// Whether CRCs are checked.
    check_crc: bool,
    /// Of the bytes of this FPDU so far.
    crc: u32,
    carry: [u8; Header::MAX_LEN],
    carried: usize,
    state: State,
    frames: u64,
    /// Counts down from a large segment on.
    large: u8,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// MPA length and header come into `carry`.
    Header,
    /// Payload comes to its place.
    Payload { header: Header, remaining: usize },
    /// Padding and CRC come.
    Trailer {
        header: Header,
        padding: usize,
        got: usize,
        crc: [u8; CRC_LEN],
    },
}

/// An FPDU all of which is at hand.
struct Whole<'a> {
    header: Header,
    /// Bytes of MPA length and header.
    own: usize,
    payload: &'a [u8],
    /// What the CRC is of: all before it.
    covered: &'a [u8],
    crc: [u8; CRC_LEN],
    /// What follows.
    rest: &'a [u8],
}

impl<'a> Whole<'a> {
    /// The first FPDU of `bytes`. `None` where not all of it is there, or where
    /// something about its header is wrong.
    #[inline(always)]
    fn split(bytes: &'a [u8]) -> Option<Self> {
        // No FPDU is shorter than the longest header.
        let (header, len) = Header::parse_first(bytes.first_chunk()?)?;
        let end = len + header.payload;
        let (covered, rest) = bytes.split_at_checked(end + pad_len(end - MPA_LEN))?;
        let (crc, rest) = rest.split_first_chunk()?;
        Some(Self {
            header,
            own: len,
            payload: covered.get(len..end)?,
            covered,
            crc: *crc,
            rest,
        })
    }
}

impl Rx {
    /// A connection in full operation, before its first FPDU.
    #[must_use]
    pub fn new(check_crc: bool) -> Self {
        Self {
            check_crc,
            crc: 0,
            carry: [0; Header::MAX_LEN],
            carried: 0,
            state: State::Header,
            frames: 0,
            large: 0,
        }
    }

    /// Whether large payloads are coming: what is received behind the payload
    /// at hand, or where none is, should then be little, because payload in it
    /// has to be copied.
    #[must_use]
    pub fn expects_large(&self) -> bool {
        self.large > 0
    }

    fn note(&mut self, header: &Header) {
        self.large = match header.payload >= LARGE {
            true => EXPECTED,
            false => self.large.saturating_sub(1),
        };
    }

    /// Whole FPDUs received.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Whether the stream may end here: not inside an FPDU.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        matches!(self.state, State::Header) && self.carried == 0
    }

    /// What is missing, for messages.
    #[must_use]
    pub fn waiting_for(&self) -> &'static str {
        match self.state {
            State::Header => "a frame header",
            State::Payload { .. } => "payload",
            State::Trailer { .. } => "a CRC",
        }
    }

    /// MPA length and DDP header of the segment at hand, as received so far.
    #[must_use]
    pub fn header_bytes(&self) -> &[u8] {
        self.carry.get(..self.carried).unwrap_or_default()
    }

    /// The header of the segment whose payload is arriving and how much of it
    /// is missing: that many bytes of the stream can go directly to
    /// [`Sink::place`], followed by [`placed`](Self::placed).
    #[must_use]
    pub fn payload(&self) -> Option<(&Header, usize)> {
        match &self.state {
            State::Payload { header, remaining } => Some((header, *remaining)),
            _ => None,
        }
    }

    /// Bytes between the payload that is arriving and that of a tagged segment
    /// after it.
    pub(crate) fn between(&self) -> usize {
        match &self.state {
            State::Payload { header, .. } => {
                let ulpdu = self.carried.saturating_sub(MPA_LEN) + header.payload;
                pad_len(ulpdu) + CRC_LEN + MPA_LEN + TAGGED_LEN
            }
            State::Header | State::Trailer { .. } => 0,
        }
    }

    /// The next `len` bytes of the stream were read to where the payload goes,
    /// not more than [`payload`](Self::payload) said.
    ///
    /// # Errors
    /// A broken rule; the connection ends.
    pub fn placed(&mut self, len: usize, sink: &mut impl Sink) -> Result<(), WireFault> {
        let State::Payload { header, remaining } = self.state else {
            return Ok(());
        };
        if self.check_crc {
            let place = sink.place(remaining)?;
            self.crc = crc::append(self.crc, place.get(..len).unwrap_or_default());
        }
        sink.advance(len);
        self.after_payload(header, remaining.saturating_sub(len));
        Ok(())
    }

    /// Takes the next bytes of the stream, all of them.
    ///
    /// # Errors
    /// A broken rule; the connection ends.
    // One copy of it for all callers, which has all of a whole segment's way in it
    // and calls the rest.
    #[inline(never)]
    pub fn consume(&mut self, mut bytes: &[u8], sink: &mut impl Sink) -> Result<(), WireFault> {
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Header => {
                    let rest = self.take_whole(bytes, sink)?;
                    if rest.is_empty() {
                        break;
                    }
                    self.take_header(rest, sink)?
                }
                State::Payload { header, remaining } => {
                    self.take_payload(bytes, header, remaining, sink)?
                }
                State::Trailer { .. } => self.take_trailer(bytes, sink)?,
            };
        }
        Ok(())
    }

    /// Takes FPDUs as long as all of the next one is at hand: most are. Leaves
    /// one about whose header something is wrong: the way through the states finds
    /// out what.
    #[inline(always)]
    fn take_whole<'a>(
        &mut self,
        mut bytes: &'a [u8],
        sink: &mut impl Sink,
    ) -> Result<&'a [u8], WireFault> {
        if self.carried > 0 {
            return Ok(bytes);
        }
        while let Some(whole) = Whole::split(bytes) {
            let Whole { header, crc, .. } = &whole;
            let checked = match self.check_crc {
                true => check_crc(*crc, crc::of(whole.covered)),
                false => Ok(()),
            };
            if let Err(fault) = checked.and_then(|()| sink.segment(header, whole.payload)) {
                // For the Terminate that tells the peer.
                self.fill_carry(bytes, whole.own);
                return Err(fault);
            }
            self.note(header);
            self.frames += 1;
            bytes = whole.rest;
        }
        Ok(bytes)
    }

    #[inline(never)]
    fn take_header<'a>(
        &mut self,
        mut bytes: &'a [u8],
        sink: &mut impl Sink,
    ) -> Result<&'a [u8], WireFault> {
        bytes = self.fill_carry(bytes, 4);
        let Some(first) = self.carry.first_chunk().filter(|_| self.carried >= 4) else {
            return Ok(bytes);
        };
        let len = Header::framed_len(*first)?;
        bytes = self.fill_carry(bytes, len);
        if self.carried < len {
            return Ok(bytes);
        }
        let header = Header::parse(self.header_bytes())?;
        sink.start(&header)?;
        self.note(&header);
        if self.check_crc {
            self.crc = crc::of(self.header_bytes());
        }
        self.after_payload(header, header.payload);
        Ok(bytes)
    }

    /// Moves bytes to the carry buffer until it has `len`.
    fn fill_carry<'a>(&mut self, bytes: &'a [u8], len: usize) -> &'a [u8] {
        let count = len.saturating_sub(self.carried).min(bytes.len());
        let (taken, rest) = bytes.split_at(count);
        let end = self.carried + count;
        if let Some(room) = self.carry.get_mut(self.carried..end) {
            room.copy_from_slice(taken);
        }
        self.carried = end;
        rest
    }

    #[inline(never)]
    fn take_payload<'a>(
        &mut self,
        bytes: &'a [u8],
        header: Header,
        remaining: usize,
        sink: &mut impl Sink,
    ) -> Result<&'a [u8], WireFault> {
        let (taken, rest) = bytes.split_at(remaining.min(bytes.len()));
        put(sink, remaining, taken)?;
        if self.check_crc {
            self.crc = crc::append(self.crc, taken);
        }
        self.after_payload(header, remaining - taken.len());
        Ok(rest)
    }

    fn after_payload(&mut self, header: Header, remaining: usize) {
        self.state = if remaining > 0 {
            State::Payload { header, remaining }
        } else {
            let ulpdu = self.carried.saturating_sub(MPA_LEN) + header.payload;
            State::Trailer {
                header,
                padding: pad_len(ulpdu),
                got: 0,
                crc: [0; CRC_LEN],
            }
        };
    }

    #[inline(never)]
    fn take_trailer<'a>(
        &mut self,
        bytes: &'a [u8],
        sink: &mut impl Sink,
    ) -> Result<&'a [u8], WireFault> {
        let State::Trailer {
            header,
            padding,
            got,
            crc,
        } = &mut self.state
        else {
            return Ok(bytes);
        };
        let count = (*padding + CRC_LEN - *got).min(bytes.len());
        let (taken, rest) = bytes.split_at(count);
        for byte in taken {
            // Padding counts for the CRC, and its content does not matter.
            match got.checked_sub(*padding).and_then(|at| crc.get_mut(at)) {
                Some(place) => *place = *byte,
                None if self.check_crc => self.crc = crc::append(self.crc, &[*byte]),
                None => {}
            }
            *got += 1;
        }
        if *got < *padding + CRC_LEN {
            return Ok(rest);
        }
        let (header, crc) = (*header, *crc);
        // RFC 5044, section 4.4: without CRCs the field is there, unchecked.
        if self.check_crc {
            check_crc(crc, self.crc)?;
        }
        sink.finish(&header)?;
        self.frames += 1;
        self.carried = 0;
        self.state = State::Header;
        Ok(rest)
    }
}

/// Copies the next bytes of a payload of which `remaining` are missing.
fn put(sink: &mut (impl Sink + ?Sized), remaining: usize, bytes: &[u8]) -> Result<(), WireFault> {
    let place = sink.place(remaining)?;
    let Some(place) = place.get_mut(..bytes.len()) else {
        return Err(WireFault::new(
            codes::DDP_CATASTROPHIC,
            "no memory for a payload that was accepted",
        ));
    };
    place.copy_from_slice(bytes);
    sink.advance(bytes.len());
    Ok(())
}

fn check_crc(field: [u8; CRC_LEN], crc: u32) -> Result<(), WireFault> {
    match field == crc_bytes(crc) {
        true => Ok(()),
        false => Err(wrong_crc(field, crc)),
    }
}

#[cold]
fn wrong_crc(field: [u8; CRC_LEN], crc: u32) -> WireFault {
    WireFault::new(
        codes::MPA_CRC,
        format!(
            "a frame's CRC is {:#010x} by its field and {crc:#010x} by its bytes",
            u32::from_le_bytes(field)
        ),
    )
}

#[cfg(test)]
#[path = "rx_tests.rs"]
mod tests;
