//! Converts text to token ids with fastokens (<https://github.com/crusoecloud/fastokens>), which caches the words that it has
//! encoded, and provides neither offsets nor the texts of tokens. `fast-encoder.ts` verifies its results.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Once};

use napi::bindgen_prelude::{AsyncTask, Env, Error, Int32Array, Result, Task};
use napi_derive::napi;

#[napi]
pub struct FastTokenizer {
    tokenizer: Arc<fastokens::Tokenizer>,
}

#[napi]
impl FastTokenizer {
    /// Reads a `tokenizer.json` on a thread of libuv. Fails if fastokens does not support the tokenizer.
    #[napi(ts_return_type = "Promise<FastTokenizer>")]
    pub fn open(path: String) -> AsyncTask<Opening> {
        stay_on_one_thread();
        AsyncTask::new(Opening { path })
    }

    /// Encodes a text on the calling thread. Added tokens in it are recognized, and no special tokens are added around it.
    #[napi]
    pub fn encode_now(&self, text: String) -> Result<Int32Array> {
        encode(&self.tokenizer, &text).map(Int32Array::new)
    }

    /// Encodes a text as `encode_now`, but on a thread of libuv.
    #[napi(ts_return_type = "Promise<Int32Array>")]
    pub fn encode(&self, text: String) -> AsyncTask<Encoding> {
        AsyncTask::new(Encoding { tokenizer: self.tokenizer.clone(), text })
    }
}

pub struct Opening {
    path: String,
}

impl Task for Opening {
    type Output = fastokens::Tokenizer;
    type JsValue = FastTokenizer;

    fn compute(&mut self) -> Result<Self::Output> {
        guarded(|| fastokens::Tokenizer::from_file(Path::new(&self.path)))
    }

    fn resolve(&mut self, _: Env, tokenizer: Self::Output) -> Result<Self::JsValue> {
        Ok(FastTokenizer { tokenizer: Arc::new(tokenizer) })
    }
}

pub struct Encoding {
    tokenizer: Arc<fastokens::Tokenizer>,
    text: String,
}

impl Task for Encoding {
    type Output = Vec<i32>;
    type JsValue = Int32Array;

    fn compute(&mut self) -> Result<Self::Output> {
        encode(&self.tokenizer, &self.text)
    }

    fn resolve(&mut self, _: Env, ids: Self::Output) -> Result<Self::JsValue> {
        Ok(Int32Array::new(ids))
    }
}

fn encode(tokenizer: &fastokens::Tokenizer, text: &str) -> Result<Vec<i32>> {
    let ids = guarded(|| tokenizer.encode(text))?;
    Ok(ids.into_iter().map(|id| id as i32).collect())
}

/// Converts a panic of the library to an error, so that it fails one text instead of the process.
fn guarded<T, E: std::fmt::Display>(work: impl FnOnce() -> std::result::Result<T, E>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| Error::from_reason(error.to_string())),
        Err(_) => Err(Error::from_reason("fastokens has panicked")),
    }
}

/// Limits fastokens to one thread. It would use all processors for one long text, but the event loop, the store and Python
/// need some.
fn stay_on_one_thread() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = rayon::ThreadPoolBuilder::new().num_threads(1).build_global();
        // The variable is set on the thread that loads the addon, before the library reads it on another thread.
        unsafe { std::env::set_var("FASTOKENS_BPE_THREADS", "1") };
    });
}
