/** Chat templates in this process: one Python interpreter for a complete test file. */

import { PromptEngine } from '../../src/proxy/tokens/prompt/prompt-engine.ts'
import { PromptRenderer, type PromptRendererOptions } from '../../src/proxy/tokens/prompt/prompt-renderer.ts'
import type { PromptService } from '../../src/proxy/tokens/prompt/prompt-service.ts'
import {
  ChatTemplate,
  type ChatTemplateSource,
  chatTemplateFiles,
  readChatTemplate,
} from '../../src/proxy/tokens/templates/chat-template.ts'
import type { PromptFormat } from '../../src/proxy/tokens/templates/prompt-format.ts'
import { PythonTemplates } from '../../src/proxy/tokens/templates/python/python-templates.ts'
import type { Tokenizer } from '../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { readTokenizerFiles, type TokenizerConfig } from '../../src/proxy/tokens/tokenizer/tokenizer-files.ts'

const python = await PythonTemplates.start()

export function templateOf(
  source: ChatTemplateSource,
  config?: TokenizerConfig,
  format?: PromptFormat,
): ChatTemplate {
  return new ChatTemplate(python, { ...chatTemplateFiles(source, config), format })
}

/** Loads a model's template and its source. */
export function loadTemplate(directory: string): { template: ChatTemplate; source: string } {
  const files = readChatTemplate(directory, readTokenizerFiles(directory).tokenizerConfig)!
  return { template: new ChatTemplate(python, files), source: files.withTools }
}

/** Creates what the proxy's prompt thread provides, without the thread. */
export function serviceOf(
  template: ChatTemplate,
  tokenizer: Tokenizer,
  eosTokenIds: readonly number[] = [],
): PromptService {
  const eosIds = new Set([tokenizer.eosTokenId!, ...eosTokenIds])
  const engine = new PromptEngine(template, { ids: tokenizer.addedTokens, eosIds })
  return {
    words: async () => engine.words,
    beginnings: async (options) => engine.beginnings(options),
    render: async (messages, options) => engine.render(messages, options),
    newPart: async (request, options) => engine.newPart(request, options),
  }
}

export function rendererFor(
  template: ChatTemplate,
  tokenizer: Tokenizer,
  options: PromptRendererOptions,
): PromptRenderer {
  return new PromptRenderer(serviceOf(template, tokenizer, options.eosTokenIds), tokenizer, options)
}
