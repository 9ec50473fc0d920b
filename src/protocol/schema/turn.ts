/**
 * The turn: a request of an agent and its response. The table defines all fields of a turn in responses, which of them
 * the store records, and in which form. `store/common/turn-columns.ts` defines their columns.
 */
import Type, { type Static } from 'typebox'
import { type Field, ids, nullable, nullableText } from './field.ts'
import { withFormerFields } from './former-names.ts'

/** A field of a turn. */
export interface TurnField extends Field {
  /**
   * The recorded part of a turn that has the field. Absent: the field is not recorded but computed for the response.
   */
  readonly part?: 'request' | 'outcome'
  /**
   * The form of the recorded value if it differs from the response's. `time`: milliseconds since the epoch, not seconds;
   * `json`: JSON text; `ids`: an Int32Array; `logprobs`: a Float64Array.
   */
  readonly form?: 'time' | 'json' | 'ids' | 'logprobs'
  /** The name of the recorded value. Default: the field's name in camel case, for a time with the suffix `Ms`. */
  readonly property?: string
  /** The response's text if the recorded value is null. Absent: null, if the type permits it. */
  readonly whenNull?: string
}

type TurnFields = Readonly<Record<string, TurnField>>

const object = (description?: string) =>
  Type.Record(Type.String(), Type.Unknown(), description === undefined ? {} : { description })
const time = (description: string) => Type.Number({ description: `${description}; seconds since the epoch` })

export const turnFields = withFormerFields({
  turn_id: { type: Type.String(), part: 'request' },
  index: {
    type: Type.Integer({ description: 'The position of the turn in the session, from 0' }),
    part: 'request',
  },
  agent_role: {
    type: Type.String({ description: '`main`, `compaction`, `side` or `subagent:…`; see docs/lines.md' }),
  },
  agent_role_rule: { type: Type.String({ description: 'The rule that determined the agent role' }) },
  status: {
    type: Type.Enum(['open', 'completed', 'aborted', 'failed', 'interrupted'], {
      description:
        '`aborted`: the agent disconnected, or the session ended; `interrupted`: open when the process died',
    }),
    part: 'outcome',
  },
  dialect: {
    type: Type.String({ description: 'The wire format of the agent: `chat`, `completions`, …' }),
    part: 'request',
  },
  request_messages: { type: Type.Array(object()) },
  request_messages_from: {
    type: Type.Optional(
      Type.Integer({
        description: 'With `messages=new`: the number of messages that were left out before these',
      }),
    ),
  },
  request_messages_of: {
    type: Type.Optional(
      Type.Union([Type.String(), Type.Null()], {
        description: 'With `messages=new`: the turn whose request begins with the messages left out',
      }),
    ),
  },
  prompt_of: {
    type: Type.Optional(
      Type.Union([Type.String(), Type.Null()], {
        description:
          'With `messages=new`, for a completion: the turn whose complete prompt precedes the `prompt` in `params`',
      }),
    ),
  },
  completion_text: {
    type: Type.String({ description: 'Empty if there is none' }),
    part: 'outcome',
    whenNull: '',
  },
  finish_reason: { type: nullableText('Null if the engine did not report it'), part: 'outcome' },
  stop_reason: { type: nullable(Type.Union([Type.String(), Type.Integer()])), part: 'outcome', form: 'json' },
  tool_calls: { type: Type.Array(object()), part: 'outcome', form: 'json' },
  reasoning_content: { type: nullableText(), part: 'outcome', property: 'reasoning' },
  tools: { type: Type.Array(object()), part: 'request', form: 'json', whenNull: '[]' },
  params: {
    type: object('The rest of the request: model, sampling, the `prompt` of a completion'),
    part: 'request',
    form: 'json',
  },
  model: { type: nullableText(), part: 'outcome' },
  engine: { type: nullableText('The engine that sampled it'), part: 'outcome' },
  usage: { type: nullable(object()), part: 'outcome', form: 'json' },
  annotations: {
    type: object(
      'Further data: how its prompt was built; `adapted_roles`: its new messages with another role than the agent sent, because the ' +
        'model rejects that one; `answered_retries`: the counts of retries that received its response; `call_ids`: the ids that the ' +
        "model or its engine gave the tool calls; `echo`: the agent's changes to its tool calls; `engine_requests`: those of a " +
        'response that continued after a cut, with offsets in its tokens; `lost_message`: the id of the message in which the ' +
        'request was sent to a node that crashed; `node_message`: the id of the message in which another node forwarded ' +
        'it; `prompt_encoder`: `file` and `sha256` of the ' +
        "model's code that wrote its prompt; `reasoning_effort`: the effort `requested` and the one `sent` where the model " +
        'rejects the former (null: none was sent); `recovered_at_index`: the index from which its node serves the session, ' +
        'after the crash of another one; `special_tokens_in_text`: in token mode, the special tokens that texts of its new ' +
        'messages contain, by index, role, token and count',
    ),
    part: 'outcome',
    form: 'json',
  },
  exact: {
    type: Type.Boolean({
      description: 'Whether ids and logprobs are complete, so that it can be trained on',
    }),
    part: 'outcome',
  },
  inexact_reason: { type: nullableText('Why it is not exact'), part: 'outcome' },
  weight_version_start: { type: nullableText("The engine's name of the version"), part: 'outcome' },
  weight_version_end: { type: nullableText("The engine's name of the version"), part: 'outcome' },
  started_at: { type: time('The arrival of the request'), part: 'request', form: 'time' },
  first_token_at: { type: nullable(time('The arrival of the first tokens')), part: 'outcome', form: 'time' },
  ended_at: { type: nullable(time('The end of the turn')), part: 'outcome', form: 'time' },
  latency_ms: { type: nullable(Type.Number()) },
  error: {
    type: nullable(Type.Object({ code: Type.String(), message: Type.String() })),
    part: 'outcome',
  },
  retry_count: {
    type: Type.Integer({ description: 'The number of earlier attempts that the SDK reports' }),
    part: 'request',
  },
} as const satisfies TurnFields)

/** The fields of a turn's tokens, which responses omit on request. */
export const turnTokenFields = {
  completion_token_ids: {
    type: ids('The ids that the engine reported; empty if it reported none'),
    part: 'outcome',
    form: 'ids',
  },
  completion_logprobs: {
    type: Type.Array(Type.Number(), { description: 'One per id' }),
    part: 'outcome',
    form: 'logprobs',
  },
  prompt_token_ids: {
    type: ids(
      "The ids of the engine's prompt: those that it reported, or that token mode sent; otherwise empty",
    ),
    part: 'outcome',
    form: 'ids',
  },
} as const satisfies TurnFields

type Fields = typeof turnFields & typeof turnTokenFields

type CamelCase<Name extends string> = Name extends `${infer Head}_${infer Rest}`
  ? `${Head}${Capitalize<CamelCase<Rest>>}`
  : Name

type PropertyName<Name extends string, F> = F extends { property: infer Property extends string }
  ? Property
  : F extends { form: 'time' }
    ? `${CamelCase<Name>}Ms`
    : CamelCase<Name>

interface ValuesByForm {
  time: number
  json: string
  ids: Int32Array
  logprobs: Float64Array
}

type PropertyValue<F extends TurnField> =
  | (F extends { form: infer Form extends keyof ValuesByForm }
      ? ValuesByForm[Form] | Extract<Static<F['type']>, null>
      : Static<F['type']>)
  | (F extends { whenNull: string } ? null : never)

/** The recorded values of a part of a turn. */
export type RecordPart<Part extends 'request' | 'outcome'> = {
  [Name in keyof Fields as Fields[Name] extends { part: Part }
    ? PropertyName<Name, Fields[Name]>
    : never]: PropertyValue<Fields[Name]>
}

/** The properties of the recorded fields that later releases added. */
type LaterProperty = {
  [Name in keyof Fields]: Fields[Name] extends { part: string; since: string }
    ? PropertyName<Name, Fields[Name]>
    : never
}[keyof Fields]

/** Values to record. Values of fields that a later release added may be absent, which means null. */
export type RecordInput<T> = Omit<T, LaterProperty> & Partial<Pick<T, LaterProperty & keyof T>>

/** A recorded field: its definition, and its names in responses and in records. */
export interface RecordField extends TurnField {
  readonly name: string
  readonly part: 'request' | 'outcome'
  readonly property: string
}

/** The recorded fields, in the order of the table. */
export const RECORD_FIELDS: readonly RecordField[] = Object.entries<TurnField>({
  ...turnFields,
  ...turnTokenFields,
}).flatMap(([name, field]) => {
  const { part, property = toPropertyName(name, field) } = field
  return part === undefined ? [] : [{ ...field, name, part, property }]
})

function toPropertyName(name: string, { form }: TurnField): string {
  return form === 'time' ? `${toCamelCase(name)}Ms` : toCamelCase(name)
}

/** Returns a name in snake case as one in camel case. */
export function toCamelCase(name: string): string {
  return name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase())
}
