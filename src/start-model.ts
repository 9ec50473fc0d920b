/** Starts token mode's model before the rest of the program is loaded. */
import { embeddedModelFolder } from './embedded/engine/embedded-model.ts'
import type { ServeConfig } from './proxy/config/options/serve.ts'
import {
  type StartingModel,
  startTokenModel,
  type TokenModelOptions,
} from './proxy/tokens/model/token-model.ts'

/** Returns the model's options. @returns undefined in chat mode */
export function getModelOptions(config: ServeConfig): TokenModelOptions | undefined {
  const { tokenizer, toolParser: parser, promptFormat, contextLength, tokenizerBackend } = config
  if (tokenizer === undefined) return undefined
  const source = tokenizer === 'embedded' ? embeddedModelFolder() : tokenizer
  return { source, parser, promptFormat, contextLength, tokenizerBackend }
}

/** Starts the model. @returns undefined in chat mode @throws the errors of {@link startTokenModel} */
export async function startModel(config: ServeConfig): Promise<StartingModel | undefined> {
  const options = getModelOptions(config)
  return options && (await startTokenModel(options))
}
