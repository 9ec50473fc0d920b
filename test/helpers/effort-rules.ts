/** Qwen3.8's rule for reasoning efforts, as a template, as an engine's error, and in front of an engine. */
import { cpSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { getEmbeddedModelFolder } from '../../src/embedded/engine/embedded-model.ts'
import { type ScriptedServer, sendJson, startScriptedServer } from './scripted-server.ts'

const SUPPORTED = ['low', 'medium', 'xhigh']

/** The check that Qwen3.8's chat template makes; it is prepended to a template. */
export const QWEN_3_8_CHECK =
  `{%- if reasoning_effort is defined and reasoning_effort not in ${JSON.stringify(SUPPORTED)} -%}` +
  "{{- raise_exception('Unexpected reasoning effort ' ~ reasoning_effort ~ " +
  "'. Supported types are xhigh (default), medium, and low') -}}{%- endif -%}\n"

/**
 * Returns the message of vLLM's 400 (from its pull request 54022 on) where that template raises an error.
 * @param body of a chat
 */
export function qwen38Error(body: Record<string, unknown>): string | undefined {
  const { reasoning_effort: effort, chat_template_kwargs: kwargs } = body
  const requested = effort ?? (kwargs as Record<string, unknown> | undefined)?.reasoning_effort
  if (requested === undefined || requested === null || SUPPORTED.includes(requested as string))
    return undefined
  return `Unexpected reasoning effort ${requested}. Supported types are xhigh (default), medium, and low`
}

/** Writes the embedded model to this folder, with the check prepended to its chat template. */
export function writeModelWithEfforts(folder: string): void {
  cpSync(getEmbeddedModelFolder(), folder, { recursive: true })
  const path = join(folder, 'tokenizer_config.json')
  const config = JSON.parse(readFileSync(path, 'utf8'))
  writeFileSync(path, JSON.stringify({ ...config, chat_template: QWEN_3_8_CHECK + config.chat_template }))
}

/** Starts a server that rejects chats as vLLM with Qwen3.8 does, and forwards all others to the engine. */
export async function startEffortCheck(
  t: Pick<Test, 'teardown'>,
  engineUrl: string,
): Promise<ScriptedServer> {
  const server = await startScriptedServer(async ({ method, path, text, body }, response) => {
    const message = path.endsWith('/chat/completions') ? qwen38Error(body) : undefined
    if (message !== undefined)
      return sendJson(response, { error: { message, type: 'BadRequestError', param: null, code: 400 } }, 400)
    const init = method === 'GET' ? {} : { body: text, headers: { 'content-type': 'application/json' } }
    const reply = await fetch(engineUrl + path, { method, ...init })
    response.writeHead(reply.status, { 'content-type': reply.headers.get('content-type') ?? 'text/plain' })
    for await (const chunk of reply.body ?? []) response.write(chunk)
    response.end()
  })
  t.teardown(() => server.close())
  return server
}
