import type { Logger } from '../../base/logger.ts'
import { VERSION } from '../../base/version.ts'
import { loadEmbeddedTokenizer } from '../../embedded/engine/embedded-model.ts'
import { uiRoutes } from '../../inspector/routes/routes.ts'
import { createTokenTextReader } from '../../proxy/engines/clients/token-text-reader.ts'
import type { ViewOptions } from '../../proxy/http/view.ts'
import { toDatabaseName } from '../../proxy/store/port/database-name.ts'
import { loadModelFiles } from '../../proxy/tokens/model/load-model-files.ts'
import { openTokenizerDirectory } from '../../proxy/tokens/tokenizer/published-tokenizer.ts'
import { loadTokenizer, type Tokenizer } from '../../proxy/tokens/tokenizer/tokenizer.ts'
import { openDatabase } from '../open-database.ts'

interface ViewSource {
  db: string
  /** The location of the model's tokenizer. */
  tokenizer?: string | undefined
  logger: Logger
}

/** The body limit: the requests of a view have no bodies. */
const NO_BODY_BYTES = 1024

/**
 * Opens a database for viewing, passes it to `use`, and always closes it.
 * @throws ProxyError `start_failed` if the database does not exist, `config_invalid` if the tokenizer does not exist
 */
export async function withView<T>(
  { db, tokenizer: name, logger }: ViewSource,
  use: (options: ViewOptions) => Promise<T>,
): Promise<T> {
  const tokenizer = name === undefined ? undefined : await openTokenizer(name)
  const reader = await openDatabase(db)
  try {
    return await use({
      reader,
      logger,
      inspector: uiRoutes,
      tokenTexts: createTokenTextReader(tokenizer && { name: name!, tokenizer }, loadEmbeddedTokenizer),
      facts: { version: VERSION, db: toDatabaseName(db) },
      bodyLimitBytes: NO_BODY_BYTES,
    })
  } finally {
    await reader.close()
  }
}

async function openTokenizer(name: string): Promise<Tokenizer> {
  return loadTokenizer(openTokenizerDirectory((await loadModelFiles(name)).directory))
}
