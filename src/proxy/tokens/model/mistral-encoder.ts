/**
 * Creates the prompt encoder of models that Mistral publishes with `tekken.json` and without a chat template: the
 * proxy's implementation of mistral-common's rules, with the constants that the model's file declares.
 */
import { readAsset } from '../../../base/assets.ts'
import { readTekkenRules } from '../tokenizer/tekken.ts'

const CODE = new URL('../templates/python/mistral_encoder.py', import.meta.url)

/** The first version in which prompts state a reasoning effort, and text parts are joined without a separator. */
const SETTINGS_VERSION = 15

/**
 * Returns the Python code of the encoder.
 * @param directory contains `tekken.json`
 * @throws ProxyError `config_invalid` if the rules of the file's version are unknown
 */
export function readMistralEncoder(directory: string): string {
  const { version, hasThinking, efforts, defaultEffort } = readTekkenRules(directory)
  // JSON strings and lists of them are valid Python.
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
