import type { Test } from 'tap'
import { type ScriptedServer, sendJson, startScriptedServer } from './scripted-server.ts'

/**
 * Starts an SGLang for a model that accepts images: it expands the placeholder of each image to its token count. It
 * closes when the test ends.
 * @param imageId the placeholder's id
 * @param counts tokens of each image of a prompt, in order
 */
export async function startVisionEngine(
  t: Test,
  imageId: number,
  counts: readonly number[],
): Promise<ScriptedServer> {
  const engine = await startScriptedServer(({ path, body }, response) => {
    if (path !== '/generate') return sendJson(response, { object: 'list', data: [{ id: 'm' }] })
    let next = 0
    const ids = body.input_ids.flatMap((id: number) =>
      id === imageId ? new Array(counts[next++]).fill(id) : [id],
    )
    const meta_info = {
      finish_reason: { type: 'stop', matched: 2 },
      prompt_tokens: ids.length,
      completion_tokens: 1,
      output_token_logprobs: [[-0.5, 65, null]],
    }
    sendJson(response, { output_ids: [65], prompt_token_ids: ids, meta_info })
  })
  t.teardown(() => engine.close())
  return engine
}
