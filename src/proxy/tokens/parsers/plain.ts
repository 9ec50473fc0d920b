/** Models whose templates know no tools: `<think>…</think>` at the beginning is reasoning, all else is content. */
import { blockFamily, THINK } from './block-parser.ts'

export const plain = blockFamily('plain', [], { reasoning: THINK })
