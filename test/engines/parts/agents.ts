/**
 * Agents for each dialect, built on the vendor's client (for Gemini, on requests as the vendor's client sends them).
 * Each agent holds a conversation and echoes responses as agents of that dialect do.
 */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import type { Dice } from './dice.ts'

// biome-ignore lint/suspicious/noExplicitAny: bodies and responses have fields that the types of the clients lack
type Json = any

/** What an agent parsed from a response. */
export interface AgentOutput {
  text: string
  reasoning: string
  toolCalls: { id: string; name: string; arguments: string }[]
  finish: string | null
  /** Token ids, if they were requested and reported. */
  ids: number[]
}

export interface RequestOptions {
  stream: boolean
  /** Sampling parameters by their names in Chat Completions. */
  sampling: Readonly<Record<string, unknown>>
  signal?: AbortSignal
}

export interface Agent {
  /** @param url session URL, without `/v1` */
  sendRequest(url: string, options: RequestOptions): Promise<AgentOutput>
  /** Adds the response to the conversation, followed by tool results and the next user message. */
  addResponse(response: AgentOutput): void
}

export const MODEL = 'tiny'

const text = { type: 'string' }
const object = (properties: object, required: string[]) => ({ type: 'object', properties, required })
const filters = { type: 'object', properties: { lang: text, safe: { type: 'boolean' } } }
export const FUNCTIONS = [
  ['get_weather', 'The weather of a city', object({ city: text, days: { type: 'integer' } }, ['city'])],
  ['calculator', 'Works out an expression', object({ expression: text }, ['expression'])],
  ['search', 'Searches', object({ query: text, limit: { type: 'number' }, filters }, ['query'])],
  ['write_file', 'Writes a file', object({ path: text, content: text }, ['path', 'content'])],
].map(([name, description, parameters]) => ({ name, description, parameters }))

const TOOLS_SHARE = 0.75

function drawFunctions(dice: Dice) {
  return dice.chance(TOOLS_SHARE) ? FUNCTIONS.slice(0, dice.int(1, FUNCTIONS.length)) : undefined
}

function createOutput(): AgentOutput {
  return { text: '', reasoning: '', toolCalls: [], finish: null, ids: [] }
}

/**
 * Returns the client options that users have. An agent that may disconnect does not report its retry count, because a
 * request with a retry count continues for a while after its client has left.
 */
function createOptions(signal: AbortSignal | undefined) {
  const options = { apiKey: 'none', timeout: 600_000 }
  if (signal === undefined) return options
  return { ...options, maxRetries: 0, defaultHeaders: { 'x-stainless-retry-count': null } }
}

function openai(url: string, signal?: AbortSignal): OpenAI {
  return new OpenAI({ ...createOptions(signal), baseURL: `${url}/v1` })
}

/** Sends one Chat Completions request, complete or streamed. */
export async function chat(url: string, body: Json, signal?: AbortSignal): Promise<AgentOutput> {
  const response = await openai(url, signal).chat.completions.create(body, { signal: signal ?? null })
  const result = createOutput()
  if (!body.stream) {
    const { message, finish_reason, token_ids } = (response as Json).choices[0]
    add(result, message)
    result.toolCalls = (message.tool_calls ?? []).map(toToolCall)
    return { ...result, finish: finish_reason, ids: token_ids ?? [] }
  }
  for await (const chunk of response as unknown as AsyncIterable<Json>) {
    const [choice] = chunk.choices
    if (choice === undefined) continue
    add(result, choice.delta)
    for (const delta of choice.delta.tool_calls ?? []) {
      result.toolCalls[delta.index] ??= { id: '', name: '', arguments: '' }
      const toolCall = result.toolCalls[delta.index]!
      toolCall.id += delta.id ?? ''
      toolCall.name += delta.function?.name ?? ''
      toolCall.arguments += delta.function?.arguments ?? ''
    }
    result.ids.push(...(choice.token_ids ?? []))
    result.finish ??= choice.finish_reason
  }
  return result
}

function add(result: AgentOutput, { content, reasoning, reasoning_content }: Json): void {
  result.text += content ?? ''
  result.reasoning += reasoning_content ?? reasoning ?? ''
}

function toToolCall({ id, function: called }: Json): AgentOutput['toolCalls'][number] {
  return { id, name: called.name, arguments: called.arguments }
}

class ChatAgent implements Agent {
  readonly messages: Json[] = []
  readonly tools: Json[] | undefined
  readonly #dice: Dice
  readonly #echoesReasoning: boolean

  constructor(dice: Dice) {
    this.#dice = dice
    this.#echoesReasoning = dice.chance(0.4)
    if (dice.chance(0.5)) this.messages.push({ role: 'system', content: dice.text(12) })
    const content = dice.chance(0.2) ? [{ type: 'text', text: dice.text(8) }] : dice.text(15)
    this.messages.push({ role: 'user', content })
    this.tools = drawFunctions(dice)?.map((each) => ({ type: 'function', function: each }))
  }

  sendRequest(url: string, { stream, sampling, signal }: RequestOptions): Promise<AgentOutput> {
    const { messages, tools } = this
    const usage = stream && this.#dice.chance(0.5) ? { stream_options: { include_usage: true } } : {}
    return chat(url, { model: MODEL, messages, tools, ...sampling, stream, ...usage }, signal)
  }

  addResponse({ text: content, reasoning, toolCalls }: AgentOutput): void {
    const dice = this.#dice
    const tool_calls = toolCalls.map(({ id, ...called }) => ({ id, type: 'function', function: called }))
    this.messages.push({
      role: 'assistant',
      content: content === '' && dice.chance(0.5) ? null : content,
      ...(toolCalls.length > 0 && { tool_calls }),
      ...(reasoning !== '' && this.#echoesReasoning && { reasoning_content: reasoning }),
    })
    for (const { id } of toolCalls)
      this.messages.push({ role: 'tool', tool_call_id: id, content: dice.text(10) })
    if (toolCalls.length === 0 || dice.chance(0.1))
      this.messages.push({ role: 'user', content: dice.text(10) })
  }
}

class MessagesAgent implements Agent {
  readonly #dice: Dice
  readonly #fixed: Json
  readonly #messages: Json[] = []
  #blocks: Json[] = []

  constructor(dice: Dice) {
    this.#dice = dice
    const parts = () => [1, 2].map(() => ({ type: 'text', text: dice.text(5) }))
    const system = dice.pick([undefined, dice.text(10), parts()])
    const tools = drawFunctions(dice)?.map(({ parameters, ...named }) => ({
      ...named,
      input_schema: parameters,
    }))
    this.#fixed = { model: MODEL, system, tools }
    this.#messages.push({ role: 'user', content: dice.text(15) })
  }

  async sendRequest(url: string, { stream, sampling, signal }: RequestOptions): Promise<AgentOutput> {
    const client = new Anthropic({ ...createOptions(signal), baseURL: url })
    const { stop, ...rest } = sampling
    const body = { ...this.#fixed, messages: this.#messages, max_tokens: 100, ...rest, stop_sequences: stop }
    const options = { signal: signal ?? null }
    const response: Json = await client.messages.create({ ...body, stream }, options)
    const { content, stop_reason: finish } = stream ? await collectMessage(response) : response
    this.#blocks = content
    const result = { ...createOutput(), finish }
    for (const block of this.#blocks) {
      if (block.type === 'text') result.text += block.text
      else if (block.type === 'thinking') result.reasoning += block.thinking
      else result.toolCalls.push({ id: block.id, name: block.name, arguments: JSON.stringify(block.input) })
    }
    return result
  }

  addResponse({ toolCalls }: AgentOutput): void {
    const dice = this.#dice
    const blocks = this.#blocks.length > 0 ? this.#blocks : [{ type: 'text', text: '…' }]
    this.#messages.push({ role: 'assistant', content: blocks })
    const content: Json[] = toolCalls.map(({ id }) => ({
      type: 'tool_result',
      tool_use_id: id,
      content: dice.text(8),
    }))
    if (toolCalls.length === 0 || dice.chance(0.2)) content.push({ type: 'text', text: dice.text(10) })
    this.#messages.push({ role: 'user', content })
  }
}

/**
 * Collects the events of a response, as Claude Code does: the client's own parser fails if a model writes arguments
 * that are not JSON.
 */
async function collectMessage(events: AsyncIterable<Json>): Promise<Json> {
  const message: Json = { content: [], stop_reason: null }
  for await (const event of events) {
    const block = message.content[event.index]
    if (event.type === 'content_block_start')
      message.content[event.index] = { ...event.content_block, json: '' }
    else if (event.type === 'content_block_stop') message.content[event.index] = parseInput(block)
    else if (event.type === 'message_delta') message.stop_reason = event.delta.stop_reason
    else if (event.type === 'content_block_delta') {
      const { text = '', thinking = '', signature, partial_json: json = '' } = event.delta
      if (block.type === 'text') block.text += text
      if (block.type === 'thinking') block.thinking += thinking
      if (signature !== undefined) block.signature = signature
      block.json += json
    }
  }
  return message
}

function parseInput({ json, ...block }: Json): Json {
  if (block.type !== 'tool_use' || json === '') return block
  try {
    return { ...block, input: JSON.parse(json) }
  } catch {
    return block
  }
}

class ResponsesAgent implements Agent {
  readonly #dice: Dice
  readonly #fixed: Json
  readonly #isChained: boolean
  #input: Json[]
  #response: Json

  constructor(dice: Dice) {
    this.#dice = dice
    this.#isChained = dice.chance(0.3)
    const instructions = dice.chance(0.6) ? dice.text(10) : undefined
    const tools = drawFunctions(dice)?.map((each) => ({ type: 'function', ...each, strict: false }))
    this.#fixed = { model: MODEL, instructions, tools }
    const content = dice.chance(0.5) ? dice.text(15) : [{ type: 'input_text', text: dice.text(10) }]
    this.#input = [{ role: 'user', content }]
  }

  async sendRequest(url: string, { stream, sampling, signal }: RequestOptions): Promise<AgentOutput> {
    const { max_tokens: max_output_tokens, ...rest } = sampling
    const previous_response_id = this.#isChained ? this.#response?.id : undefined
    const limits = { max_output_tokens, previous_response_id }
    const body = { ...this.#fixed, input: this.#input, ...rest, ...limits, stream } as Json
    const response = (await openai(url, signal).responses.create(body, { signal: signal ?? null })) as Json
    this.#response = stream ? undefined : response
    if (stream) for await (const event of response) this.#response = event.response ?? this.#response
    const result = { ...createOutput(), finish: this.#response.status }
    for (const item of this.#response.output) {
      const parts = (item.content ?? []).map((part: Json) => part.text).join('')
      if (item.type === 'message') result.text += parts
      else if (item.type === 'reasoning') result.reasoning += parts
      else result.toolCalls.push({ id: item.call_id, name: item.name, arguments: item.arguments })
    }
    return result
  }

  addResponse({ toolCalls }: AgentOutput): void {
    const dice = this.#dice
    if (this.#isChained) this.#input = []
    else this.#input.push(...this.#response.output)
    for (const { id } of toolCalls)
      this.#input.push({ type: 'function_call_output', call_id: id, output: dice.text(10) })
    if (toolCalls.length === 0 || dice.chance(0.1)) this.#input.push({ role: 'user', content: dice.text(10) })
  }
}

class GeminiAgent implements Agent {
  readonly #dice: Dice
  readonly #fixed: Json
  readonly #contents: Json[] = []
  #parts: Json[] = []

  constructor(dice: Dice) {
    this.#dice = dice
    const system = dice.chance(0.5) && { systemInstruction: { parts: [{ text: dice.text(10) }] } }
    const declarations = drawFunctions(dice)?.map(({ parameters: parametersJsonSchema, ...named }) => ({
      ...named,
      parametersJsonSchema,
    }))
    this.#fixed = { ...system, ...(declarations && { tools: [{ functionDeclarations: declarations }] }) }
    this.#contents.push({ role: 'user', parts: [{ text: dice.text(15) }] })
  }

  async sendRequest(url: string, { stream, sampling, signal }: RequestOptions): Promise<AgentOutput> {
    const {
      max_tokens: maxOutputTokens,
      temperature,
      top_p: topP,
      top_k: topK,
      stop,
      seed,
      ...rest
    } = sampling
    const generationConfig = { maxOutputTokens, temperature, topP, topK, seed, stopSequences: stop }
    const thinkingConfig = { includeThoughts: true }
    const body = { ...this.#fixed, ...rest, contents: this.#contents }
    const method = stream ? `streamGenerateContent${this.#dice.pick(['', '?alt=sse'])}` : 'generateContent'
    const response = await fetch(`${url}/v1beta/models/${MODEL}:${method}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ ...body, generationConfig: { ...generationConfig, thinkingConfig } }),
      signal: signal ?? null,
    })
    const responses = parseGeminiResponses(await response.text())
    const error = responses.find((response) => response.error !== undefined)
    if (error !== undefined) throw new Error(JSON.stringify(error))
    this.#parts = responses.flatMap(({ candidates }) => candidates[0].content.parts)
    const result = { ...createOutput(), finish: responses.at(-1)!.candidates[0].finishReason }
    for (const { text: chunk = '', thought, functionCall: called } of this.#parts) {
      if (thought) result.reasoning += chunk
      else result.text += chunk
      if (called)
        result.toolCalls.push({ id: called.id, name: called.name, arguments: JSON.stringify(called.args) })
    }
    return result
  }

  addResponse({ toolCalls }: AgentOutput): void {
    const dice = this.#dice
    this.#contents.push({ role: 'model', parts: this.#parts })
    const parts: Json[] = toolCalls.map(({ id, name }) => ({
      functionResponse: { id, name, response: { output: dice.text(8) } },
    }))
    if (toolCalls.length === 0 || dice.chance(0.2)) parts.push({ text: dice.text(10) })
    this.#contents.push({ role: 'user', parts })
  }
}

/** Parses a response: one object, an array, or events. Empty lines are keep-alives. */
function parseGeminiResponses(body: string): Json[] {
  if (!body.trimStart().startsWith('data: ')) return [JSON.parse(body)].flat()
  const events = body.split(/\n\n+/).filter((event) => event.startsWith('data: '))
  return events.map((event) => JSON.parse(event.slice('data: '.length)))
}

/** An agent of the completions API: it renders the template itself, or sends token ids. */
class CompletionsAgent implements Agent {
  readonly #dice: Dice
  #prompt: string | number[]

  constructor(dice: Dice) {
    this.#dice = dice
    this.#prompt = dice.chance(0.4)
      ? this.#drawIds(40)
      : `<|im_start|>user\n${dice.text(10)}${GENERATION_PROMPT}`
  }

  async sendRequest(url: string, { stream, sampling, signal }: RequestOptions): Promise<AgentOutput> {
    const body = { model: MODEL, prompt: this.#prompt, ...sampling, stream, return_token_ids: true } as Json
    const response = (await openai(url, signal).completions.create(body, { signal: signal ?? null })) as Json
    const result = createOutput()
    for await (const { choices } of stream ? response : [response]) {
      const [choice] = choices
      if (choice === undefined) continue
      result.text += choice.text
      result.ids.push(...(choice.token_ids ?? []))
      result.finish ??= choice.finish_reason
    }
    return result
  }

  addResponse({ text: response, ids }: AgentOutput): void {
    const dice = this.#dice
    if (typeof this.#prompt !== 'string') this.#prompt = [...this.#prompt, ...ids, ...this.#drawIds(10)]
    else this.#prompt += `${response}<|im_end|>\n<|im_start|>user\n${dice.text(8)}${GENERATION_PROMPT}`
  }

  #drawIds(maxCount: number): number[] {
    return Array.from({ length: this.#dice.int(1, maxCount) }, () => this.#dice.int(0, 151_000))
  }
}

const GENERATION_PROMPT = '<|im_end|>\n<|im_start|>assistant\n'

export const AGENTS: Record<string, new (dice: Dice) => Agent> = {
  chat: ChatAgent,
  messages: MessagesAgent,
  responses: ResponsesAgent,
  gemini: GeminiAgent,
  completions: CompletionsAgent,
}
