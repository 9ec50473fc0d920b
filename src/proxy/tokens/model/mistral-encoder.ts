/**
 * The prompt encoder of models that Mistral publishes with `tekken.json` and without a chat template: the proxy's own
 * code for mistral-common's rules, with what the model's file declares.
 */
import { readAsset } from '../../../base/assets.ts'
import { readTekkenRules } from '../tokenizer/tekken.ts'

const CODE = new URL('../templates/python/mistral_encoder.py', import.meta.url)

/** The version of the file from which on prompts state a reasoning effort, and parts of a content are not separated. */
const SETTINGS_VERSION = 15

/**
 * Returns the code of the encoder.
 * @param directory contains `tekken.json`
 * @throws ProxyError `config_invalid` if its rules are unknown
 */
export function readMistralEncoder(directory: string): string {
  const { version, hasThinking, efforts, defaultEffort } = readTekkenRules(directory)
  // JSON texts, and lists of them, are Python's, too.
  const assignments = {
    VERSION: String(version),
    HAS_THINKING: hasThinking ? 'True' : 'False',
    EFFORTS: JSON.stringify(efforts),
    DEFAULT_EFFORT: JSON.stringify(defaultEffort ?? ''),
    PART_SEPARATOR: JSON.stringify(version < SETTINGS_VERSION ? '\n\n' : ''),
  }
  const lines = Object.entries(assignments).map(([name, value]) => `${name} = ${value}\n`)
  return `${Buffer.from(readAsset(CODE)).toString('utf8')}\n${lines.join('')}`
}
