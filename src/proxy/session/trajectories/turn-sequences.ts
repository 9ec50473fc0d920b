/** The token ids of a session's turns, as nodes of one tree. */
import type { TurnRecord, TurnStep } from '../../store/port/turn-store.ts'
import { TokenNode } from './token-tree.ts'

/** A turn's ids: its prompt whole, or as what it adds to an earlier turn. */
export type TurnIds = Pick<TurnRecord, 'turnId' | 'completionTokenIds'> &
  (Pick<TurnRecord, 'promptTokenIds'> | Pick<TurnStep, 'promptStep'>)

export interface TurnSequence {
  readonly prompt: TokenNode
  readonly promptLength: number
  /** Prompt and completion. */
  readonly tokens: TokenNode
  readonly length: number
}

export class TurnSequences {
  readonly root = TokenNode.root()
  readonly #byTurn = new Map<string, TurnSequence>()

  /** Takes all turns of a reading, whatever their status: any may be the base of a later one. Copies what is new. */
  add(turn: TurnIds): TurnSequence {
    const { base, shared, rest } = 'promptStep' in turn ? turn.promptStep : wholeStep(turn.promptTokenIds)
    const prompt = this.#begin(base, shared).descend(rest)
    const promptLength = shared + rest.length
    const sequence = {
      prompt,
      promptLength,
      tokens: prompt.descend(turn.completionTokenIds),
      length: promptLength + turn.completionTokenIds.length,
    }
    this.#byTurn.set(turn.turnId, sequence)
    return sequence
  }

  #begin(base: string | null, shared: number): TokenNode {
    if (base === null) return this.root
    const found = this.#byTurn.get(base)
    if (found === undefined) throw new Error(`turn ${base}, the base of another one, was not read before it`)
    return found.tokens.prefix(found.length, shared)
  }
}

function wholeStep(promptTokenIds: Int32Array): TurnStep['promptStep'] {
  return { base: null, shared: 0, rest: promptTokenIds }
}
