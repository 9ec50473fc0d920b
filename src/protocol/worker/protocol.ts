/**
 * The worker protocol: every frame of `/ws/worker`, in both versions. A frame is JSON text with a `type`; names are
 * those of the wire. `docs/worker-protocol.md` explains each frame and field; a test pins the hash of these schemas, so
 * that the wire cannot change unnoticed. Fields may be added; existing ones stay.
 */
import Type from 'typebox'

export const PROTOCOL_VERSION = 2

/** The maximum size of a frame in either direction. */
export const MAX_FRAME_BYTES = 100 * 1024 * 1024

/** The time within which a worker must send its hello, and for which it waits for the acknowledgement. */
export const HELLO_TIMEOUT_MS = 10_000

/** The number of missed heartbeats after which a side considers the other one lost. */
export const MISSED_HEARTBEATS = 3

/**
 * The number of pongs that may wait to be written; further pings have no response. It bounds the memory that a peer
 * which reads nothing costs, as the limit of `ws` on its own pongs does (`maxPendingAutoPongs`), whose value this is.
 */
export const MAX_PENDING_PONGS = 60

/** The close codes of a connection. */
export const CLOSE = {
  /** The worker has finished its requests and disconnects. */
  done: 1000,
  /** The closing side is shutting down; a worker reconnects. */
  goingAway: 1001,
  /** No hello in time, or an invalid one. */
  badHello: 4000,
  /** The first frame is not a hello. */
  notHello: 4001,
  /** The proxy is not in relay mode: it sends requests to engines itself. */
  notRelayMode: 4002,
  /** A message that is not a frame: not JSON text, or without a `type`. */
  protocolError: 4003,
  /** A newer connection with this worker's id has replaced this one. */
  replaced: 4004,
  /** A worker with the same id and a newer epoch is connected. */
  staleEpoch: 4005,
} as const

/**
 * The reason that the proxy sends with `goingAway` after it has failed the worker's requests. An intermediary may send
 * this code, too, without the reason.
 */
export const PROXY_SHUTS_DOWN = 'the proxy shuts down'

/** Optional features. A connection uses those that both the proxy and the worker support. */
export const CAPABILITIES = {
  /** The worker cancels a request on `completion_cancel`. */
  cancel: 'cancel',
  /** The worker keeps requests across a reconnect and resends the frames that were not received. */
  resume: 'resume',
  /** The worker reports requests in progress for which it has no frame to send. */
  alive: 'alive',
  /** The worker checks its engines when the proxy requests their status. */
  status: 'status',
  /** All engines of the worker accept chat requests as the token ids of the prompt. */
  tokenIds: 'token_ids',
  /** The worker requests the token data that `record` names from its engines, and sends it. */
  details: 'details',
  /** All engines of the worker accept token ids that represent the images of a request's messages. */
  images: 'images',
  /** The worker and its engines discard a session's cached state when the proxy reports the session's end. */
  sessionEnd: 'session_end',
  /**
   * The worker accepts a prompt as the ids that it adds to an earlier one, and chat requests by ids without their
   * messages.
   */
  promptShared: 'prompt_shared',
} as const

/**
 * An error of `completion_response`: the worker no longer has `prompt_base`; the proxy resends the complete request.
 */
export const PROMPT_FORGOTTEN = 'prompt_forgotten'

const RequestId = Type.String({ minLength: 1, maxLength: 256 })
const WorkerId = Type.String({ minLength: 1, maxLength: 200 })
/** The engine's own identifier of its weights; null: not reported. */
const WeightVersion = Type.Union([Type.String(), Type.Null()])
const Models = Type.Array(
  Type.Object({ id: Type.String(), max_model_len: Type.Optional(Type.Integer({ minimum: 1 })) }),
)
/** The number of requests that a worker serves concurrently. */
const MaxConcurrency = Type.Integer({ minimum: 1 })
/** Packed token ids: base64 of little-endian 32-bit integers; as JSON numbers a long prompt's ids cost far more. */
const PackedTokenIds = Type.String()
const nullable = <Schema extends Type.TSchema>(schema: Schema) => Type.Union([schema, Type.Null()])
/**
 * Numbers as the engine reports them; null: not reported, or not representable in JSON. Invalid ids and
 * log-probabilities make the recorded turn inexact; they do not fail the request.
 */
const EngineNumbers = Type.Array(nullable(Type.Number()))

// Both directions

export const Ping = Type.Object({ type: Type.Literal('ping') })
export const Pong = Type.Object({ type: Type.Literal('pong') })

// Version 1

export const WorkerHelloV1 = Type.Object({
  type: Type.Literal('worker_hello'),
  /** Absent: the proxy generates one and returns it in the acknowledgement. */
  worker_id: Type.Optional(nullable(WorkerId)),
})

export const WorkerHelloAckV1 = Type.Object({
  type: Type.Literal('worker_hello_ack'),
  worker_id: WorkerId,
  status: Type.Literal('connected'),
})

/** A request of version 1. Every field is always set. */
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

/** The complete response. An absent field counts as null. */
export const CompletionResponseV1 = Type.Object({
  type: Type.Literal('completion_response'),
  request_id: RequestId,
  token_ids: Type.Optional(nullable(EngineNumbers)),
  log_probs: Type.Optional(nullable(EngineNumbers)),
  /** The model's output including the markup of its tool calls. */
  completion_text: Type.Optional(nullable(Type.String())),
  /** The model's output as agents receive it. */
  content_text: Type.Optional(nullable(Type.String())),
  /** OpenAI tool calls, or the JSON text of such a list. */
  tool_calls: Type.Optional(nullable(Type.Union([Type.Array(ToolCallV1), Type.String()]))),
  finish_reason: Type.Optional(nullable(Type.String())),
  error: Type.Optional(nullable(Type.String())),
})

// Version 2

/** Why the worker receives no new requests: all its healthy engines are asleep or paused. Absent: it receives them. */
const Unavailable = Type.Enum(['asleep', 'paused'])

/**
 * A text as the tokenizers of the worker's engines encode it; a proxy in token mode compares it with its own tokenizer.
 */
const TextIds = Type.Object({
  /** A proxy that uses another text skips the comparison. */
  text: Type.String(),
  /** The engines that report it. */
  engines: Type.Array(
    Type.Object({
      name: Type.String(),
      models: Type.Array(Type.String()),
      ids: Type.Array(Type.Integer()),
      /**
       * The ids of the prompts that the engine's own template renders from test chats, by the names that proxies use
       * for these chats.
       */
      chat_ids: Type.Optional(Type.Record(Type.String(), Type.Array(Type.Integer()))),
    }),
  ),
})

/** The maximum length of a worker's warning about its engines, in characters. */
export const MAX_WARNING_LENGTH = 2_000

export const WorkerHelloV2 = Type.Object({
  type: Type.Literal('worker_hello'),
  worker_id: WorkerId,
  /** The newest version that the worker supports. */
  protocol: Type.Integer({ minimum: 2 }),
  capabilities: Type.Array(Type.String()),
  models: Models,
  max_concurrency: MaxConcurrency,
  weight_version: WeightVersion,
  /** Whether any of its engines is healthy; absent: true. */
  healthy: Type.Optional(Type.Boolean()),
  unavailable: Type.Optional(Unavailable),
  text_ids: Type.Optional(TextIds),
  /**
   * Identifies one run of the worker's process; later runs have higher numbers. Milliseconds since 1970 are suitable.
   */
  epoch: Type.Integer({ minimum: 0 }),
  /** Requests of this proxy that the worker still has; empty on a first connection. */
  requests: Type.Array(RequestId),
  /** Sent by workers of release 0.1; ignored. */
  offers: Type.Optional(
    Type.Array(
      Type.Object({
        request_id: RequestId,
        /** Whether the request had the prompt's token ids. */
        by_ids: Type.Boolean(),
      }),
    ),
  ),
})

export const WorkerHelloAckV2 = Type.Object({
  type: Type.Literal('worker_hello_ack'),
  worker_id: WorkerId,
  status: Type.Literal('connected'),
  /** The version that proxy and worker use. */
  protocol: Type.Integer({ minimum: 2 }),
  capabilities: Type.Array(Type.String()),
  /** The interval at which the proxy sends WebSocket pings. */
  heartbeat_ms: Type.Integer({ minimum: 1 }),
  /** How long the proxy keeps the requests of a worker whose connection was lost. */
  grace_ms: Type.Integer({ minimum: 0 }),
  /** The number of a request's bytes that may be sent before they are acknowledged. */
  window_bytes: Type.Integer({ minimum: 1 }),
  /** To a worker with `alive`: the longest interval between its `calls_alive` frames. */
  alive_ms: Type.Optional(Type.Integer({ minimum: 1 })),
  /** Those of the hello's `requests` that the proxy still needs, with the last chunk that it received. */
  requests: Type.Array(Type.Object({ request_id: RequestId, received: Type.Integer({ minimum: 0 }) })),
  /** Sent by proxies of release 0.1; ignored. */
  kept: Type.Optional(Type.Array(RequestId)),
})

/** The fields of version 1, and the complete request as the agent sent it. */
export const CompletionRequestV2 = Type.Intersect([
  CompletionRequestV1,
  Type.Object({
    kind: Type.Union([Type.Literal('chat'), Type.Literal('completion')]),
    /** The canonical body with every field, known or not, except `messages`, `tools` and a prompt of token ids. */
    body: Type.Record(Type.String(), Type.Unknown()),
    /** The prompt of a completion if it is token ids; for a chat request the ids after which the engine samples. */
    prompt_token_ids: Type.Optional(PackedTokenIds),
    /** To workers with `images`: the id that represents images in `prompt_token_ids`. */
    image_token_id: Type.Optional(Type.Integer({ minimum: 0 })),
    /** The number of placeholders of each image, in the order of the image parts of `messages`. */
    image_tokens: Type.Optional(Type.Array(Type.Integer({ minimum: 1 }))),
    /** The ids before and after each image that vLLM adds itself. */
    image_edges: Type.Optional(Type.Tuple([Type.Integer({ minimum: 0 }), Type.Integer({ minimum: 0 })])),
    /** With a chat's `prompt_token_ids`: the model's tool-call format, for engines with constrained decoding. */
    call_format: Type.Optional(Type.String()),
    /** With a chat's `prompt_token_ids`: the model may reason before the constrained part. */
    may_reason: Type.Optional(Type.Boolean()),
    /** To workers with `details`: the token data to request beyond ids and logprobs, such as `top_logprobs:20`. */
    record: Type.Optional(Type.Array(Type.String())),
    /** With `routed_experts` in `record`: the first position of the prompt to report; absent: 0. */
    experts_start: Type.Optional(Type.Integer({ minimum: 0 })),
    /** The request whose prompt the proxy has: an earlier one of the session, or this one if it includes its ids. */
    prompt_base: Type.Optional(RequestId),
    /** To workers with `prompt_shared`: the number of ids of `prompt_base` before `prompt_token_ids`; absent: none. */
    prompt_shared: Type.Optional(Type.Integer({ minimum: 1 })),
    /** The session's sub-agent that sent the request; engines and routers treat it as a separate session. */
    subagent: Type.Optional(Type.String({ minLength: 1, maxLength: 256 })),
    /** For the rest of a response that was cut: an engine with older weights must not serve it. */
    min_weight_version: Type.Optional(Type.String()),
    /** Whether only an engine that lists the body's model may serve the request; absent: false. */
    must_serve: Type.Optional(Type.Boolean()),
    /** For a traced request: a header for the engine (W3C Trace Context). */
    traceparent: Type.Optional(
      Type.String({ pattern: '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' }),
    ),
  }),
])

export const CompletionCancel = Type.Object({
  type: Type.Literal('completion_cancel'),
  request_id: RequestId,
})

/** Reports the end of a session to workers with the capability `session_end` that have served it. */
export const SessionEnd = Type.Object({
  type: Type.Literal('session_end'),
  session_id: Type.String(),
})

/**
 * Acknowledges that the chunks up to `seq` have been forwarded: the worker may discard them and send as many bytes
 * again.
 */
export const CompletionAck = Type.Object({
  type: Type.Literal('completion_ack'),
  request_id: RequestId,
  seq: Type.Integer({ minimum: 1 }),
})

/** Requests a `worker_status` that is no older than this frame; sent to workers with the capability `status`. */
export const WorkerStatusRequest = Type.Object({
  type: Type.Literal('worker_status_request'),
  seq: Type.Integer({ minimum: 1 }),
})

/** Reports requests that are running on an engine or queued for one, although they have produced no chunk. */
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

/** One delta of the completion, as the engine sent it. */
export const WireDelta = Type.Object({
  content: Type.Optional(Type.String()),
  reasoning: Type.Optional(Type.String()),
  refusal: Type.Optional(Type.String()),
  tool_calls: Type.Optional(Type.Array(ToolCallDeltaOnWire)),
  token_ids: Type.Optional(EngineNumbers),
  /** Natural logarithms. */
  log_probs: Type.Optional(EngineNumbers),
  /** OpenAI's `logprobs.content` entries, for an agent that requested them. */
  logprobs_content: Type.Optional(Type.Array(Type.Record(Type.String(), Type.Unknown()))),
  /** Token data by the names of `record`: base64 of a safetensors file. */
  details: Type.Optional(Type.Record(Type.String(), Type.String())),
  /** Fields of the engine's message that are not defined here. */
  extra: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
})

export const WireStart = Type.Object({
  engine: Type.String(),
  model: Type.Optional(Type.String()),
  /** The prompt as the engine reports it. */
  prompt_token_ids: Type.Optional(PackedTokenIds),
  /** The number of ids of the request's `prompt_base` before `prompt_token_ids`; absent: none. */
  prompt_shared: Type.Optional(Type.Integer({ minimum: 0 })),
  weight_version: Type.Optional(Type.String()),
  /** The settings with which the engine samples unless the request sets others. */
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
  /** 1, 2, 3 … per request, without gaps; the response counts too. */
  seq: Type.Integer({ minimum: 1 }),
  /** Set in the first chunk. */
  start: Type.Optional(WireStart),
  /** The deltas that were available at the same time, in order. */
  deltas: Type.Array(WireDelta),
})

/** A ProxyError on the wire, so that an agent receives the same error in local and in relay mode. */
export const WireError = Type.Object({
  /** A code of the error catalogue; an unknown one counts as `engine_failed`. */
  code: Type.String(),
  message: Type.String(),
  status: Type.Integer({ minimum: 400, maximum: 599 }),
  param: Type.Optional(Type.String()),
  retry_after_s: Type.Optional(Type.Number({ minimum: 0 })),
  engine_body: Type.Optional(Type.Unknown()),
  /** The text that the proxy may log; absent: only the code. `message` may quote the prompt. */
  log_message: Type.Optional(Type.String({ maxLength: 1_000 })),
  /** Whether the weights changed during the response: the version in its start is not that of its last tokens. */
  weights_changed: Type.Optional(Type.Boolean()),
})

/** The end of a request, completed or failed. */
export const CompletionResponseV2 = Type.Object({
  type: Type.Literal('completion_response'),
  request_id: RequestId,
  seq: Type.Integer({ minimum: 1 }),
  /** null when `error` is set. */
  finish_reason: nullable(Type.String()),
  stop_reason: Type.Optional(nullable(Type.Union([Type.String(), Type.Integer()]))),
  usage: Type.Optional(nullable(Type.Record(Type.String(), Type.Unknown()))),
  /** All ids of the prompt, if the engine reports other ones after the start. */
  prompt_token_ids: Type.Optional(PackedTokenIds),
  weight_version: Type.Optional(WeightVersion),
  error: nullable(WireError),
})

/** Sent after the acknowledgement and when any field changes. */
export const WorkerStatus = Type.Object({
  type: Type.Literal('worker_status'),
  /** Whether any of its engines is healthy. */
  healthy: Type.Boolean(),
  unavailable: Type.Optional(Unavailable),
  text_ids: Type.Optional(TextIds),
  /**
   * Replaces the hello's: `token_ids` and `images` depend on the engines, whose kind may be unknown before. Absent:
   * unchanged.
   */
  capabilities: Type.Optional(Type.Array(Type.String())),
  /** The reason why its engines' turns are impaired although they are served. */
  warning: Type.Optional(Type.String({ maxLength: MAX_WARNING_LENGTH })),
  /** The number of requests that the worker serves, for all its proxies. */
  load: Type.Integer({ minimum: 0 }),
  models: Models,
  weight_version: WeightVersion,
  /** Whether it finishes its requests and accepts no new ones. */
  draining: Type.Boolean(),
  /** The `seq` of the `worker_status_request` to which this responds; absent: sent because a field changed. */
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
export type WireDelta = Type.Static<typeof WireDelta>
export type WireStart = Type.Static<typeof WireStart>
export type WireError = Type.Static<typeof WireError>
export type WorkerStatusRequest = Type.Static<typeof WorkerStatusRequest>
export type CallsAlive = Type.Static<typeof CallsAlive>
export type WorkerStatus = Type.Static<typeof WorkerStatus>
export type Pong = Type.Static<typeof Pong>
