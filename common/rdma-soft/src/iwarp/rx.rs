//! The receiving side: from a byte stream, split anywhere, to segments.

use super::crc;
use super::fault::{WireFault, codes};
use super::fpdu::{CRC_LEN, crc_bytes, pad_len};
use super::{Header, MPA_LEN, TAGGED_LEN};

/// Minimum payload of a large segment: more than a packet of 9000 bytes brings. For smaller
/// ones, copying costs less than a call each.
pub(crate) const LARGE: usize = 9 * 1024;
/// Number of segments after a large one in which another is expected: messages come in
/// several segments, and small messages accompany large ones.
const EXPECTED: u8 = 16;

/// Destination and processing of segments. The order of calls is `start`, any number of
/// `place` and `advance`, `finish`; or only `segment`.
pub trait Sink {
    /// Starts a segment and checks its header.
    ///
    /// # Errors
    /// A protocol violation; the connection ends.
    fn start(&mut self, header: &Header) -> Result<(), WireFault>;

    /// Memory for the rest of the payload of the segment that was started:
    /// `remaining` bytes.
    ///
    /// # Errors
    /// When the memory does not exist any more.
    fn place(&mut self, remaining: usize) -> Result<&mut [u8], WireFault>;

    /// Reports that `len` bytes were written to the start of the memory from `place`.
    fn advance(&mut self, len: usize);

    /// The segment is complete and its CRC was correct.
    ///
    /// # Errors
    /// A protocol violation; the connection ends.
    fn finish(&mut self, header: &Header) -> Result<(), WireFault>;

    /// Processes a complete segment with a correct CRC: equivalent to the other calls.
    ///
    /// # Errors
    /// A protocol violation; the connection ends.
    fn segment(&mut self, header: &Header, payload: &[u8]) -> Result<(), WireFault> {
        in_parts(self, header, payload)
    }
}

/// Processes a complete segment by the calls for one that arrives in parts.
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

/// Receives FPDUs. It buffers at most one header, however the stream is split.
#[derive(Debug)]
pub struct Rx {
    /// Whether CRCs are checked.
    check_crc: bool,
    /// CRC of the bytes of this FPDU so far.
    crc: u32,
    carry: [u8; Header::MAX_LEN],
    carried: usize,
    state: State,
    frames: u64,
    /// Counts down after a large segment.
    large: u8,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Receiving MPA length and header into `carry`.
    Header,
    /// Receiving payload to its destination.
    Payload { header: Header, remaining: usize },
    /// Receiving padding and CRC.
    Trailer {
        header: Header,
        padding: usize,
        got: usize,
        crc: [u8; CRC_LEN],
    },
}

/// A complete FPDU.
struct CompleteFpdu<'a> {
    header: Header,
    /// Bytes of MPA length and header.
    own: usize,
    payload: &'a [u8],
    /// The bytes covered by the CRC.
    covered: &'a [u8],
    crc: [u8; CRC_LEN],
    /// The bytes behind it.
    rest: &'a [u8],
}

impl<'a> CompleteFpdu<'a> {
    /// The first FPDU of `bytes`. `None` if it is incomplete or has an invalid header.
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
    /// An established connection, before its first FPDU.
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

    /// Whether large payloads are expected: then little should be received behind the current
    /// payload, or if there is none, because payload there has to be copied.
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

    /// Number of complete FPDUs received.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Whether the stream may end here, which is not inside an FPDU.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        matches!(self.state, State::Header) && self.carried == 0
    }

    /// The missing part, for messages.
    #[must_use]
    pub fn waiting_for(&self) -> &'static str {
        match self.state {
            State::Header => "a frame header",
            State::Payload { .. } => "payload",
            State::Trailer { .. } => "a CRC",
        }
    }

    /// MPA length and DDP header of the current segment, as received so far.
    #[must_use]
    pub fn header_bytes(&self) -> &[u8] {
        self.carry.get(..self.carried).unwrap_or_default()
    }

    /// The header of the segment whose payload is arriving, and the number of missing bytes:
    /// that many bytes of the stream can go directly to [`Sink::place`], followed by
    /// [`placed`](Self::placed).
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

    /// Reports that the next `len` bytes of the stream were read to the destination of the
    /// payload, at most as many as [`payload`](Self::payload) returned.
    ///
    /// # Errors
    /// A protocol violation; the connection ends.
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

    /// Processes the next bytes of the stream, all of them.
    ///
    /// # Errors
    /// A protocol violation; the connection ends.
    // Not inlined: one copy for all callers, which contains the whole path of a complete
    // segment and calls the rest.
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

    /// Processes FPDUs as long as the next one is complete, which most are. Leaves one with
    /// an invalid header: the slow path determines the error.
    #[inline(always)]
    fn take_whole<'a>(
        &mut self,
        mut bytes: &'a [u8],
        sink: &mut impl Sink,
    ) -> Result<&'a [u8], WireFault> {
        if self.carried > 0 {
            return Ok(bytes);
        }
        while let Some(whole) = CompleteFpdu::split(bytes) {
            let CompleteFpdu { header, crc, .. } = &whole;
            let checked = match self.check_crc {
                true => check_crc(*crc, crc::of(whole.covered)),
                false => Ok(()),
            };
            if let Err(fault) = checked.and_then(|()| sink.segment(header, whole.payload)) {
                // For the Terminate.
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
            // The CRC covers the padding, whose content does not matter.
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
        // RFC 5044, section 4.4: without CRCs the field exists and is not checked.
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
            "the CRC of a frame is {:#010x}, computed: {crc:#010x}",
            u32::from_le_bytes(field)
        ),
    )
}

#[cfg(test)]
#[path = "rx_tests.rs"]
mod tests;
