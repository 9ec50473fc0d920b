/**
 * Reads playbooks, which force completions, so that tool loops and agents can be tested without a capable model. A
 * playbook is an ordered list of rules, each with conditions on the conversation and a completion; the first rule that
 * matches applies. `docs/embedded-engine.md` describes the format.
 */
import { readFileSync } from 'node:fs'
import Type, { type Static } from 'typebox'
import { ProxyError } from '../../base/errors.ts'
import { formatPythonJson } from './chat-ml.ts'
import type { PromptConversation } from './prompt-conversation.ts'
import { findSchemaError } from './schema-error.ts'

const closed = { additionalProperties: false }

const Conditions = Type.Object(
  {
    role: Type.Optional(Type.Enum(['user', 'tool'], { description: 'Role of the last message.' })),
    text: Type.Optional(Type.String({ description: 'Regular expression on the text of the last message.' })),
    user: Type.Optional(
      Type.String({ description: 'Regular expression on the text of the last user message: the task.' }),
    ),
    step: Type.Optional(
      Type.Integer({ minimum: 0, description: 'Assistant messages since the last user message.' }),
    ),
    tool: Type.Optional(Type.String({ description: 'Name of a tool that the request must offer.' })),
    model: Type.Optional(Type.String({ description: 'Name of the model that the request must ask for.' })),
    messages: Type.Optional(
      Type.Integer({ minimum: 0, description: 'Number of messages, without system messages.' }),
    ),
  },
  closed,
)

const PlaybookToolCall = Type.Object(
  { name: Type.String({ minLength: 1 }), arguments: Type.Record(Type.String(), Type.Unknown()) },
  closed,
)

const PlaybookResponse = Type.Object(
  {
    reasoning: Type.Optional(Type.String()),
    content: Type.Optional(Type.String()),
    tool_calls: Type.Optional(Type.Array(PlaybookToolCall)),
    cut_after_tokens: Type.Optional(
      Type.Integer({ minimum: 1, description: 'Ends there with finish_reason "length".' }),
    ),
  },
  closed,
)

const Rule = Type.Object(
  { name: Type.String({ minLength: 1 }), when: Conditions, answer: PlaybookResponse },
  closed,
)

const PlaybookFile = Type.Object({ rules: Type.Array(Rule) }, closed)

type Conditions = Static<typeof Conditions>
type PlaybookResponse = Static<typeof PlaybookResponse>

/** A forced completion. */
interface PlaybookCompletion {
  /** The name of the rule. */
  rule: string
  /** The text in the chat template's format, without the end-of-turn token. */
  text: string
  /** The number of tokens after which the completion ends with `length`. */
  cutAfterTokens: number | undefined
}

/** A rule with compiled regular expressions. */
interface PlaybookRule {
  name: string
  when: Conditions
  /** The compiled `when.text`. */
  text: RegExp | undefined
  /** The compiled `when.user`. */
  user: RegExp | undefined
  answer: PlaybookResponse
}

/** A list of rules that force completions. */
export class Playbook {
  readonly #rules: readonly PlaybookRule[]

  /**
   * @param source the parsed JSON of a playbook file
   * @param origin the name of the playbook in error messages
   * @throws ProxyError `config_invalid` naming the rule and the invalid field
   */
  constructor(source: unknown, origin = 'playbook') {
    const error = findSchemaError(PlaybookFile, source)
    if (error) throw createPlaybookError(origin, `${error.path || 'the value'} ${error.reason}`)
    this.#rules = (source as Static<typeof PlaybookFile>).rules.map((rule, i) => ({
      ...rule,
      text: compilePattern(rule.when.text, `${origin}: rules.${i}.when.text`),
      user: compilePattern(rule.when.user, `${origin}: rules.${i}.when.user`),
    }))
  }

  /** Reads a playbook file. @throws ProxyError `config_invalid` if the file cannot be read or is not a playbook */
  static fromFile(path: string): Playbook {
    const origin = `playbook ${path}`
    let source: unknown
    try {
      source = JSON.parse(readFileSync(path, 'utf8'))
    } catch (error) {
      throw createPlaybookError(origin, (error as Error).message, error)
    }
    return new Playbook(source, origin)
  }

  /** Whether there are no rules, so that conversations need not be parsed. */
  get isEmpty(): boolean {
    return this.#rules.length === 0
  }

  /** Returns the completion of the first rule that applies; undefined if none does. */
  findResponse(conversation: PromptConversation, model: string | undefined): PlaybookCompletion | undefined {
    for (const rule of this.#rules) {
      const values = matchRule(rule, conversation, model)
      if (values === undefined) continue
      return {
        rule: rule.name,
        text: formatResponse(rule.answer, values),
        cutAfterTokens: rule.answer.cut_after_tokens,
      }
    }
    return undefined
  }
}

/** The values of the groups `$1` and `$<name>`, by number and name. */
type Captures = ReadonlyMap<string, string>

/** Returns the captured groups if a rule matches a conversation; undefined if it does not. */
function matchRule(
  rule: PlaybookRule,
  conversation: PromptConversation,
  model?: string,
): Captures | undefined {
  const { role, step, tool, messages, model: wantedModel } = rule.when
  const last = conversation.messages.at(-1)
  if (last === undefined || last.role === 'assistant') return undefined
  if (role !== undefined && last.role !== role) return undefined
  if (step !== undefined && conversation.step !== step) return undefined
  if (tool !== undefined && !conversation.tools.has(tool)) return undefined
  if (messages !== undefined && conversation.messages.length !== messages) return undefined
  if (wantedModel !== undefined && model !== wantedModel) return undefined
  const captures = new Map<string, string>()
  if (rule.user && !capture(rule.user, conversation.task, captures)) return undefined
  // This pattern is matched last, so that $1 refers to the last message if both patterns have groups.
  if (rule.text && !capture(rule.text, last.text, captures)) return undefined
  return captures
}

/** Matches a pattern, and adds its groups to `captures`. @returns whether it matches */
function capture(pattern: RegExp, text: string, captures: Map<string, string>): boolean {
  const match = pattern.exec(text)
  if (!match) return false
  match.forEach((group, i) => {
    captures.set(String(i), group ?? '')
  })
  for (const [name, group] of Object.entries(match.groups ?? {})) captures.set(name, group ?? '')
  return true
}

/** Formats a completion as the chat template renders it in later prompts. */
function formatResponse(response: PlaybookResponse, captures: Captures): string {
  const reasoning = substitute(response.reasoning ?? '', captures)
  const content = substitute(response.content ?? '', captures)
  const calls = (response.tool_calls ?? []).map((call) => {
    const args = substituteDeep(call.arguments, captures)
    return `<tool_call>\n{"name": ${JSON.stringify(call.name)}, "arguments": ${formatPythonJson(args)}}\n</tool_call>`
  })
  const output = [...(content === '' ? [] : [content]), ...calls].join('\n')
  return reasoning === '' ? output : `<think>\n${reasoning}\n</think>\n\n${output}`
}

/** Replaces `$1`, `$<name>` and `$$` (a dollar sign), which have the notation of JavaScript's `replace`. */
function substitute(text: string, captures: Captures): string {
  return text.replace(/\$(?:\$|(\d)|<(\w+)>)/g, (match, digit?: string, name?: string) => {
    if (match === '$$') return '$'
    return captures.get((digit ?? name)!) ?? ''
  })
}

function substituteDeep(value: unknown, captures: Captures): unknown {
  if (typeof value === 'string') return substitute(value, captures)
  if (Array.isArray(value)) return value.map((item) => substituteDeep(item, captures))
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, substituteDeep(item, captures)]))
}

function compilePattern(pattern: string | undefined, path: string): RegExp | undefined {
  if (pattern === undefined) return undefined
  try {
    return new RegExp(pattern, 'iu')
  } catch (error) {
    throw createPlaybookError(path, (error as Error).message, error)
  }
}

function createPlaybookError(origin: string, reason: string, cause?: unknown): ProxyError {
  return new ProxyError('config_invalid', `${origin}: ${reason}`, { cause })
}
