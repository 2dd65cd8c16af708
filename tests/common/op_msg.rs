//! MongoDB's wire protocol, as far as proxies in tests read it: a message is a header of four 32-bit integers (length,
//! id, the id that it replies to, opcode) and, for opcode 2013 (OP_MSG), flags and sections, of which the one of kind 0
//! is the command or the reply (<https://www.mongodb.com/docs/manual/reference/mongodb-wire-protocol/>).

use mongodb::bson::RawDocument;
use tokio::io::{AsyncRead, AsyncReadExt as _};

const OP_MSG: i32 = 2013;
/// Further replies follow without requests.
const MORE_TO_COME: i32 = 2;

/// A whole message.
pub struct Message(pub Vec<u8>);

impl Message {
    /// Reads the next message.
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Self> {
        let mut message = Self(vec![0; 16]);
        from.read_exact(&mut message.0).await?;
        message.0.resize(usize::try_from(message.integer(0)).unwrap(), 0);
        from.read_exact(&mut message.0[16..]).await?;
        Ok(message)
    }

    fn integer(&self, at: usize) -> i32 {
        i32::from_le_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    pub fn id(&self) -> i32 {
        self.integer(4)
    }

    /// The id of the message that this one replies to.
    pub fn reply_to(&self) -> i32 {
        self.integer(8)
    }

    fn is_op_msg(&self) -> bool {
        self.integer(12) == OP_MSG
    }

    /// Whether another reply to the same request follows.
    pub fn is_followed(&self) -> bool {
        self.is_op_msg() && self.integer(16) & MORE_TO_COME != 0
    }

    /// The command or the reply. Sequences of documents (kind 1) may come before it.
    pub fn document(&self) -> Option<&RawDocument> {
        if !self.is_op_msg() {
            return None;
        }
        let mut at = 20;
        while *self.0.get(at)? == 1 {
            at += 1 + usize::try_from(self.integer(at + 1)).ok()?;
        }
        let length = usize::try_from(self.integer(at + 1)).ok()?;
        RawDocument::from_bytes(self.0.get(at + 1..at + 1 + length)?).ok()
    }
}
