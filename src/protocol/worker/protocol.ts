/**
 * The worker protocol: every frame of `/ws/worker`, both versions, and nothing else. A frame is JSON text with a
 * `type`; names are the wire's. `docs/worker-protocol.md` explains each frame and field; a test pins the hash of these
 * schemas, so that the wire cannot change unnoticed. A field may be added; what is here stays.
 */
import Type from 'typebox'

export const PROTOCOL_VERSION = 2

/** A frame, in either direction, may be this large. */
export const MAX_FRAME_BYTES = 100 * 1024 * 1024

/** A worker has this long to say hello, and waits this long for the answer. */
export const HELLO_TIMEOUT_MS = 10_000

/** Heartbeats that a side may miss before the other takes it for gone. */
export const MISSED_HEARTBEATS = 3

export const CLOSE = {
  /** The worker has finished everything and leaves. */
  done: 1000,
  /** The side that closes is shutting down; a worker dials again. */
  goingAway: 1001,
  /** No hello in time, or one that cannot be read. */
  badHello: 4000,
  /** The first frame is another than a hello. */
  notHello: 4001,
  /** This proxy reaches its engines itself. */
  notRelayMode: 4002,
  /** A frame that is no frame: not JSON text, or without a `type`. */
  protocolError: 4003,
  /** A newer connection has come for this worker's id. */
  replaced: 4004,
  /** A worker of the same id with a newer epoch is there. */
  staleEpoch: 4005,
} as const

/** The reason beside `goingAway`, which something between the two may send as well: the proxy has failed its calls. */
export const PROXY_SHUTS_DOWN = 'the proxy shuts down'

/** Two proxies or workers that differ in what they have of these agree on what both have. */
export const CAPABILITIES = {
  /** Stops a call on `completion_cancel`. */
  cancel: 'cancel',
  /** Keeps calls over a reconnect and sends again what was not received. */
  resume: 'resume',
  /** Says of calls that have nothing to send that it works on them. */
  alive: 'alive',
  /** Asks its engines how they are when the proxy wants to know. */
  status: 'status',
  /** Each of its engines serves chat calls by the token ids of the prompt. */
  tokenIds: 'token_ids',
  /** Asks its engines for what `record` names, and sends it. */
  details: 'details',
  /** Each of its engines serves chat calls by token ids that stand for the images of the messages. */
  images: 'images',
  /** Lets go of what it and its engines keep of a session when the proxy says that it has ended. */
  sessionEnd: 'session_end',
  /** Takes of a prompt's ids only what they add to an earlier prompt, and a chat call by ids without its messages. */
  promptShared: 'prompt_shared',
} as const

/** Of a `completion_response`: the worker has forgotten `prompt_base`; the proxy sends the request again, whole. */
export const PROMPT_FORGOTTEN = 'prompt_forgotten'

const RequestId = Type.String({ minLength: 1, maxLength: 256 })
const WorkerId = Type.String({ minLength: 1, maxLength: 200 })
/** Which weights, in the engine's own word; null: it does not tell. */
const WeightVersion = Type.Union([Type.String(), Type.Null()])
const Models = Type.Array(
  Type.Object({ id: Type.String(), max_model_len: Type.Optional(Type.Integer({ minimum: 1 })) }),
)
/** Calls that a worker serves at once. */
const MaxConcurrency = Type.Integer({ minimum: 1 })
/** Token ids packed: base64 of little-endian 32-bit integers; as JSON numbers a long prompt's ids cost far more. */
const PackedTokenIds = Type.String()
const nullable = <Schema extends Type.TSchema>(schema: Schema) => Type.Union([schema, Type.Null()])
/**
 * Numbers as the engine has them; null: it did not tell one, or it is one that JSON has no word for. The record says of
 * ids and log-probabilities that are none that the turn is not exact; the call goes on.
 */
const EngineNumbers = Type.Array(nullable(Type.Number()))

// Both ways

export const Ping = Type.Object({ type: Type.Literal('ping') })
export const Pong = Type.Object({ type: Type.Literal('pong') })

// Version 1

export const WorkerHelloV1 = Type.Object({
  type: Type.Literal('worker_hello'),
  /** Absent: the proxy makes one, and tells it in the acknowledgement. */
  worker_id: Type.Optional(nullable(WorkerId)),
})

export const WorkerHelloAckV1 = Type.Object({
  type: Type.Literal('worker_hello_ack'),
  worker_id: WorkerId,
  status: Type.Literal('connected'),
})

/** Every field is always there. */
export const CompletionRequestV1 = Type.Object({
  type: Type.Literal('completion_request'),
  request_id: RequestId,
  session_id: Type.String(),
  messages: Type.Array(Type.Unknown()),
  temperature: Type.Number(),
  top_p: Type.Number(),
  max_tokens: Type.Number(),
  stop: nullable(Type.Union([Type.String(), Type.Array(Type.String())])),
  tools: nullable(Type.Array(Type.Unknown())),
  repetition_penalty: nullable(Type.Number()),
  stream: Type.Boolean(),
})

const ToolCallV1 = Type.Object({
  id: Type.Optional(nullable(Type.String())),
  function: Type.Object({ name: Type.String(), arguments: Type.Optional(Type.Unknown()) }),
})

/** The whole answer. What is absent counts as null. */
export const CompletionResponseV1 = Type.Object({
  type: Type.Literal('completion_response'),
  request_id: RequestId,
  token_ids: Type.Optional(nullable(EngineNumbers)),
  log_probs: Type.Optional(nullable(EngineNumbers)),
  /** The model's words with the markup of its tool calls. */
  completion_text: Type.Optional(nullable(Type.String())),
  /** The model's words as an agent should see them. */
  content_text: Type.Optional(nullable(Type.String())),
  /** OpenAI tool calls, or the JSON text of such a list. */
  tool_calls: Type.Optional(nullable(Type.Union([Type.Array(ToolCallV1), Type.String()]))),
  finish_reason: Type.Optional(nullable(Type.String())),
  error: Type.Optional(nullable(Type.String())),
})

// Version 2

/** Its engines are well, and each is asleep or paused: it gets no new calls. Absent: it gets them. */
const Unavailable = Type.Enum(['asleep', 'paused'])

/** What tokenizers of its engines make of a text, by which a proxy in token mode sees whether they are its own. */
const TextIds = Type.Object({
  /** A proxy that compares by another text does not compare. */
  text: Type.String(),
  /** Those that tell. */
  engines: Type.Array(
    Type.Object({
      name: Type.String(),
      models: Type.Array(Type.String()),
      ids: Type.Array(Type.Integer()),
      /** Of the prompts that its own template makes of chats, by the names that proxies give these. */
      chat_ids: Type.Optional(Type.Record(Type.String(), Type.Array(Type.Integer()))),
    }),
  ),
})

/** Characters of what a worker says of what its engines lack. */
export const MAX_WARNING_LENGTH = 2_000

export const WorkerHelloV2 = Type.Object({
  type: Type.Literal('worker_hello'),
  worker_id: WorkerId,
  /** The newest version that the worker speaks. */
  protocol: Type.Integer({ minimum: 2 }),
  capabilities: Type.Array(Type.String()),
  models: Models,
  max_concurrency: MaxConcurrency,
  weight_version: WeightVersion,
  /** Whether any of its engines serves; absent: they do. */
  healthy: Type.Optional(Type.Boolean()),
  unavailable: Type.Optional(Unavailable),
  text_ids: Type.Optional(TextIds),
  /** One life of the worker's process; a later life has a higher one. Milliseconds since 1970 will do. */
  epoch: Type.Integer({ minimum: 0 }),
  /** Calls of this proxy that the worker still holds; empty on a first connection. */
  requests: Type.Array(RequestId),
  /** Of workers of release 0.1; nobody reads it. */
  offers: Type.Optional(
    Type.Array(
      Type.Object({
        request_id: RequestId,
        /** The request had the prompt's token ids. */
        by_ids: Type.Boolean(),
      }),
    ),
  ),
})

export const WorkerHelloAckV2 = Type.Object({
  type: Type.Literal('worker_hello_ack'),
  worker_id: WorkerId,
  status: Type.Literal('connected'),
  /** The version that both speak. */
  protocol: Type.Integer({ minimum: 2 }),
  capabilities: Type.Array(Type.String()),
  /** The proxy sends a WebSocket ping this often. */
  heartbeat_ms: Type.Integer({ minimum: 1 }),
  /** How long the proxy keeps the calls of a worker whose connection has dropped. */
  grace_ms: Type.Integer({ minimum: 0 }),
  /** A call's bytes that may be sent and not be acknowledged. */
  window_bytes: Type.Integer({ minimum: 1 }),
  /** To a worker with `alive`: how often, at least, it is to send `calls_alive`. */
  alive_ms: Type.Optional(Type.Integer({ minimum: 1 })),
  /** Of the hello's `requests`, those that the proxy still wants, with the last chunk that it has. */
  requests: Type.Array(Type.Object({ request_id: RequestId, received: Type.Integer({ minimum: 0 }) })),
  /** Of proxies of release 0.1; nobody reads it. */
  kept: Type.Optional(Type.Array(RequestId)),
})

/** Version 1's request, and what the agent really sent. */
export const CompletionRequestV2 = Type.Intersect([
  CompletionRequestV1,
  Type.Object({
    kind: Type.Union([Type.Literal('chat'), Type.Literal('completion')]),
    /** The canonical body with every field, known or not, without `messages`, `tools` and a prompt of token ids. */
    body: Type.Record(Type.String(), Type.Unknown()),
    /** The prompt of a completion that is given in token ids; of a chat call: sample after exactly these. */
    prompt_token_ids: Type.Optional(PackedTokenIds),
    /** To workers with `images`: the id that `prompt_token_ids` has in the place of an image. */
    image_token_id: Type.Optional(Type.Integer({ minimum: 0 })),
    /** How many of them each image has, in the order of the image parts of `messages`. */
    image_tokens: Type.Optional(Type.Array(Type.Integer({ minimum: 1 }))),
    /** The ids before and after each image that vLLM writes itself. */
    image_edges: Type.Optional(Type.Tuple([Type.Integer({ minimum: 0 }), Type.Integer({ minimum: 0 })])),
    /** With a chat's `prompt_token_ids`: how the model writes tool calls, for an engine that can be held to it. */
    call_format: Type.Optional(Type.String()),
    /** With a chat's `prompt_token_ids`: the model may reason before what the engine is held to. */
    may_reason: Type.Optional(Type.Boolean()),
    /** To workers with `details`: what to ask the engine for beyond ids and logprobs, such as `top_logprobs:20`. */
    record: Type.Optional(Type.Array(Type.String())),
    /** With `routed_experts` in `record`: the place of the prompt from which they are wanted; absent: 0. */
    experts_start: Type.Optional(Type.Integer({ minimum: 0 })),
    /** Whose prompt the proxy has: an earlier call of the session, or this one, if it brings its ids. */
    prompt_base: Type.Optional(RequestId),
    /** To workers with `prompt_shared`: so many ids of `prompt_base` come before `prompt_token_ids`; absent: none. */
    prompt_shared: Type.Optional(Type.Integer({ minimum: 1 })),
    /** Which of the session's sub-agents calls: engines and routers know it as a session of its own. */
    subagent: Type.Optional(Type.String({ minLength: 1, maxLength: 256 })),
    /** Of a call that is traced: a header for the engine (W3C Trace Context). */
    traceparent: Type.Optional(
      Type.String({ pattern: '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' }),
    ),
  }),
])

export const CompletionCancel = Type.Object({
  type: Type.Literal('completion_cancel'),
  request_id: RequestId,
})

/** The session makes no more calls; sent to workers with the capability `session_end` that have served it. */
export const SessionEnd = Type.Object({
  type: Type.Literal('session_end'),
  session_id: Type.String(),
})

/** Chunks up to `seq` have been handed on: they may be forgotten, and their bytes may be sent anew. */
export const CompletionAck = Type.Object({
  type: Type.Literal('completion_ack'),
  request_id: RequestId,
  seq: Type.Integer({ minimum: 1 }),
})

/** Wants a `worker_status` that is no older than this frame; sent to workers with the capability `status`. */
export const WorkerStatusRequest = Type.Object({
  type: Type.Literal('worker_status_request'),
  seq: Type.Integer({ minimum: 1 }),
})

/** These calls have an engine at work, or wait for one, though no chunk came of them. */
export const CallsAlive = Type.Object({
  type: Type.Literal('calls_alive'),
  request_ids: Type.Array(RequestId),
})

const ToolCallDeltaOnWire = Type.Object({
  index: Type.Integer({ minimum: 0 }),
  id: Type.Optional(Type.String()),
  type: Type.Optional(Type.Literal('function')),
  function: Type.Optional(
    Type.Object({ name: Type.Optional(Type.String()), arguments: Type.Optional(Type.String()) }),
  ),
})

/** One piece of the completion, as the engine gave it. */
export const DeltaOnWire = Type.Object({
  content: Type.Optional(Type.String()),
  reasoning: Type.Optional(Type.String()),
  refusal: Type.Optional(Type.String()),
  tool_calls: Type.Optional(Type.Array(ToolCallDeltaOnWire)),
  token_ids: Type.Optional(EngineNumbers),
  /** Natural logarithms. */
  log_probs: Type.Optional(EngineNumbers),
  /** OpenAI's `logprobs.content` entries, for an agent that asked for them. */
  logprobs_content: Type.Optional(Type.Array(Type.Record(Type.String(), Type.Unknown()))),
  /** By the names of `record`: base64 of a safetensors file. */
  details: Type.Optional(Type.Record(Type.String(), Type.String())),
  /** Fields of the engine's message without a name here. */
  extra: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
})

export const StartOnWire = Type.Object({
  engine: Type.String(),
  model: Type.Optional(Type.String()),
  /** The prompt as the engine saw it, where it tells. */
  prompt_token_ids: Type.Optional(PackedTokenIds),
  /** So many ids of the request's `prompt_base` come before `prompt_token_ids`; absent: none. */
  prompt_shared: Type.Optional(Type.Integer({ minimum: 0 })),
  weight_version: Type.Optional(Type.String()),
  /** What the engine says of how it samples where a call does not say. */
  sampling: Type.Optional(
    Type.Object({
      logprobs_mode: Type.Optional(Type.String()),
      defaults: Type.Optional(Type.Record(Type.String(), Type.Number())),
    }),
  ),
})

export const CompletionChunk = Type.Object({
  type: Type.Literal('completion_chunk'),
  request_id: RequestId,
  /** 1, 2, 3 … per call, without gaps; the response counts too. */
  seq: Type.Integer({ minimum: 1 }),
  /** In the first chunk. */
  start: Type.Optional(StartOnWire),
  /** Pieces that were ready at once, in order. */
  deltas: Type.Array(DeltaOnWire),
})

/** What a ProxyError is on the wire, so that an agent gets the same error in both modes. */
export const ErrorOnWire = Type.Object({
  /** A code of the error catalogue; one that the proxy does not know counts as `engine_failed`. */
  code: Type.String(),
  message: Type.String(),
  status: Type.Integer({ minimum: 400, maximum: 599 }),
  param: Type.Optional(Type.String()),
  retry_after_s: Type.Optional(Type.Number({ minimum: 0 })),
  engine_body: Type.Optional(Type.Unknown()),
  /** What the proxy's log may say of it; absent: nothing but the code. `message` may quote the prompt. */
  log_message: Type.Optional(Type.String({ maxLength: 1_000 })),
})

/** The end of a call: the completion is whole, or failed. */
export const CompletionResponseV2 = Type.Object({
  type: Type.Literal('completion_response'),
  request_id: RequestId,
  seq: Type.Integer({ minimum: 1 }),
  /** null when `error` is set. */
  finish_reason: nullable(Type.String()),
  stop_reason: Type.Optional(nullable(Type.Union([Type.String(), Type.Integer()]))),
  usage: Type.Optional(nullable(Type.Record(Type.String(), Type.Unknown()))),
  /** All ids of the prompt, where the engine reports them after the start and differently from it. */
  prompt_token_ids: Type.Optional(PackedTokenIds),
  weight_version: Type.Optional(WeightVersion),
  error: nullable(ErrorOnWire),
})

/** Sent after the ack, and when something of it changes. */
export const WorkerStatus = Type.Object({
  type: Type.Literal('worker_status'),
  /** Whether any of its engines serves. */
  healthy: Type.Boolean(),
  unavailable: Type.Optional(Unavailable),
  text_ids: Type.Optional(TextIds),
  /** Why turns of its engines are not what they should be, though they serve. */
  warning: Type.Optional(Type.String({ maxLength: MAX_WARNING_LENGTH })),
  /** Calls that the worker serves, for all its proxies. */
  load: Type.Integer({ minimum: 0 }),
  models: Models,
  weight_version: WeightVersion,
  /** It finishes what it has and takes nothing new. */
  draining: Type.Boolean(),
  /** The `seq` of the request that this answers. */
  answers: Type.Optional(Type.Integer({ minimum: 1 })),
})

export type WorkerHelloV1 = Type.Static<typeof WorkerHelloV1>
export type WorkerHelloV2 = Type.Static<typeof WorkerHelloV2>
export type WorkerHelloAckV1 = Type.Static<typeof WorkerHelloAckV1>
export type WorkerHelloAckV2 = Type.Static<typeof WorkerHelloAckV2>
export type CompletionRequestV1 = Type.Static<typeof CompletionRequestV1>
export type CompletionRequestV2 = Type.Static<typeof CompletionRequestV2>
export type CompletionResponseV1 = Type.Static<typeof CompletionResponseV1>
export type CompletionResponseV2 = Type.Static<typeof CompletionResponseV2>
export type CompletionChunk = Type.Static<typeof CompletionChunk>
export type CompletionCancel = Type.Static<typeof CompletionCancel>
export type SessionEnd = Type.Static<typeof SessionEnd>
export type CompletionAck = Type.Static<typeof CompletionAck>
export type DeltaOnWire = Type.Static<typeof DeltaOnWire>
export type StartOnWire = Type.Static<typeof StartOnWire>
export type ErrorOnWire = Type.Static<typeof ErrorOnWire>
export type WorkerStatusRequest = Type.Static<typeof WorkerStatusRequest>
export type CallsAlive = Type.Static<typeof CallsAlive>
export type WorkerStatus = Type.Static<typeof WorkerStatus>
export type Pong = Type.Static<typeof Pong>
