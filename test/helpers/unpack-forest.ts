import type {
  CompletionTokens,
  ForestRow,
  PromptTokens,
} from '../../src/proxy/session/trajectories/forest.ts'
import type { Trajectory } from '../../src/proxy/session/trajectories/trajectories.ts'

/** Unpacks a forest into its rows, as docs/http-api.md specifies: each row walks from its leaf to the root. */
export function unpackForest(forest: {
  readonly nodes: readonly (PromptTokens | CompletionTokens)[]
  readonly rows: readonly ForestRow[]
}): (Trajectory & { session_id: string })[] {
  return forest.rows.map(({ leaf, prompt_tokens: prompt, response_tokens: response, ...row }) => {
    const path: (PromptTokens | CompletionTokens)[] = []
    for (let at = leaf; at !== null; at = path[0]!.parent) path.unshift(forest.nodes[at]!)
    const ids = path.flatMap((node) => [...node.ids])
    const mask = new Uint8Array(response)
    const logprobs = new Float64Array(response)
    const nodes = new Map(path.map((node) => ['turn' in node ? node.turn.turn_id : '', node]))
    for (const { turn_id: turnId, start, end, trained } of row.turns) {
      if (!trained) continue
      mask.fill(1, start, end)
      logprobs.set((nodes.get(turnId) as CompletionTokens).logprobs, start)
    }
    return {
      ...row,
      prompt_ids: Int32Array.from(ids.slice(0, prompt)),
      response_ids: Int32Array.from(ids.slice(prompt)),
      response_mask: mask,
      response_logprobs: logprobs,
    }
  })
}
