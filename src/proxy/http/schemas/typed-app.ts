import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type {
  FastifyBaseLogger,
  FastifyInstance,
  RawReplyDefaultExpression,
  RawRequestDefaultExpression,
  RawServerDefault,
} from 'fastify'
import { validatorCompiler } from './validate.ts'

/** An application whose routes have the types of their schemas. */
export type SchemaApp = FastifyInstance<
  RawServerDefault,
  RawRequestDefaultExpression,
  RawReplyDefaultExpression,
  FastifyBaseLogger,
  TypeBoxTypeProvider
>

/** Returns the same plugin scope with routes that are typed and validated by their schemas. */
export function toTypedApp(plain: FastifyInstance): SchemaApp {
  const app: SchemaApp = plain.withTypeProvider<TypeBoxTypeProvider>()
  app.setValidatorCompiler(validatorCompiler)
  // Response schemas only document: the response of the handler is sent unfiltered.
  app.setSerializerCompiler(() => JSON.stringify)
  return app
}
