/**
 * An engine that renders and tokenizes prompts with Qwen3's own template and tokenizer, and parses tool calls as vLLM's
 * `hermes` parser does: the text before the first tool call stays unchanged, arguments are rewritten as Python writes
 * JSON. An echo that differs from the completion results in another prompt, as with a real engine.
 */
import type { ServerResponse } from 'node:http'
import { loadTokenizer } from '../../../src/proxy/tokens/tokenizer/tokenizer.ts'
import {
  openEventStream,
  type ScriptedServer,
  sendJson,
  startScriptedServer,
} from '../../helpers/scripted-server.ts'
import { loadTemplate } from '../../helpers/templates.ts'
import { TOKEN_MODEL } from '../parts/token-model.ts'

export const TURNS = 24
const MODEL = 'stand-in'
const ROOT = { id: 'cmpl-echo', created: 1, model: MODEL }

interface EchoEngine extends ScriptedServer {
  countSampledTokens(): number
}

interface AssistantFields {
  content: string | null
  tool_calls?: object[]
}

export async function startEchoEngine(): Promise<EchoEngine> {
  const tokenizer = loadTokenizer(TOKEN_MODEL)
  const { template } = loadTemplate(TOKEN_MODEL)
  const [start, assistant] = tokenizer.encode('<|im_start|>assistant')
  let sampled = 0
  const server = await startScriptedServer(({ method, path, body }, response) => {
    if (method === 'GET') return respondToGet(path, response)
    const isChat = path === '/v1/chat/completions'
    if (!isChat && path !== '/v1/completions') return sendJson(response, { detail: 'Not Found' }, 404)
    const prompt: number[] = isChat
      ? tokenizer.encode(template.render(body.messages, { tools: body.tools }))
      : body.prompt
    const turns = prompt.filter((id, index) => id === start && prompt[index + 1] === assistant).length
    // Before its first request llm-proxy checks whether the engine has the same tokenizer; this is not a turn of the
    // agent.
    const text = turns === 0 ? 'Yes.' : createCompletion(turns - 1)
    const ids = [...tokenizer.encode(text), tokenizer.eosTokenId!]
    // With a one-token request, llm-proxy checks which logprobs the engine reports.
    if (turns > 0 && body.max_tokens !== 1) sampled += ids.length
    const tokens = ids.map((id) => ({
      token: tokenizer.decode([id]),
      logprob: -0.5,
      bytes: [],
      top_logprobs: [],
    }))
    const finish_reason = isChat && text.includes('<tool_call>') ? 'tool_calls' : 'stop'
    const lists = {
      tokens: tokens.map(({ token }) => token),
      token_logprobs: ids.map(() => -0.5),
      top_logprobs: null,
    }
    const choice = {
      index: 0,
      ...{ finish_reason, stop_reason: null, token_ids: ids },
      ...(isChat ? { logprobs: { content: tokens } } : { text, logprobs: lists, prompt_token_ids: prompt }),
    }
    const root = { ...ROOT, ...(isChat && { prompt_token_ids: prompt }) }
    const usage = { prompt_tokens: prompt.length, completion_tokens: ids.length }
    const message = { role: 'assistant', ...parseCompletion(text) }
    if (!body.stream)
      return sendJson(response, { ...root, choices: [{ ...choice, ...(isChat && { message }) }], usage })
    const send = openEventStream(response)
    send({ ...root, choices: [{ ...choice, ...(isChat && { delta: addIndexes(message) }) }] })
    if (body.stream_options?.include_usage) send({ ...ROOT, choices: [], usage })
    send('[DONE]')
    response.end()
  })
  return { ...server, countSampledTokens: () => sampled }
}

function respondToGet(path: string, response: ServerResponse): void {
  if (path === '/v1/models') sendJson(response, { object: 'list', data: [{ id: MODEL, owned_by: 'vllm' }] })
  else if (path === '/health') response.end()
  else if (path === '/version') sendJson(response, { version: '0.32.0' })
  else sendJson(response, { detail: 'Not Found' }, 404)
}

/** Returns a completion as models write it: some tool calls in the trained format, some with other white space. */
function createCompletion(turn: number): string {
  if (turn >= TURNS - 1) return 'All files are read.'
  const path = JSON.stringify(`src/file-${turn}.ts`)
  const toolCall = `{"name": "read_file", "arguments": {"path": ${path}, "lines": 20}}`
  const [trained, other] = [
    toMarkup(toolCall),
    toMarkup(toolCall.replaceAll(': ', ':').replaceAll(', ', ',')),
  ]
  const texts = [trained, `I read file ${turn} next.\n${trained}`, `Now file ${turn}:\n\n\n${trained}`, other]
  return texts[turn % texts.length]!
}

function toMarkup(toolCall: string): string {
  return `<tool_call>\n${toolCall}\n</tool_call>`
}

function parseCompletion(text: string): AssistantFields {
  const toolCall = /<tool_call>\n(.*)\n<\/tool_call>/.exec(text)
  if (toolCall === null) return { content: text }
  const { name, arguments: values } = JSON.parse(toolCall[1]!)
  const members = Object.entries(values).map(([key, value]) => `"${key}": ${JSON.stringify(value)}`)
  const id = `call_${values.path.replace(/\D/g, '')}`
  const tool_calls = [{ id, type: 'function', function: { name, arguments: `{${members.join(', ')}}` } }]
  return { content: text.slice(0, toolCall.index) || null, tool_calls }
}

function addIndexes(message: AssistantFields): AssistantFields {
  const tool_calls = message.tool_calls?.map((toolCall, index) => ({ index, ...toolCall }))
  return { ...message, ...(tool_calls && { tool_calls }) }
}
