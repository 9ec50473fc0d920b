import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type {
  FastifyBaseLogger,
  FastifyInstance,
  RawReplyDefaultExpression,
  RawRequestDefaultExpression,
  RawServerDefault,
} from 'fastify'
import { validatorCompiler } from './validate.ts'

/** A Fastify application whose handlers have the types of their schemas. */
export type SchemaApp = FastifyInstance<
  RawServerDefault,
  RawRequestDefaultExpression,
  RawReplyDefaultExpression,
  FastifyBaseLogger,
  TypeBoxTypeProvider
>

/** Makes the routes of an application typed and validated by their schemas. @returns the same application */
export function toTypedApp(plain: FastifyInstance): SchemaApp {
  const app: SchemaApp = plain.withTypeProvider<TypeBoxTypeProvider>()
  app.setValidatorCompiler(validatorCompiler)
  // Response schemas only document: the value that a handler returns is sent unfiltered.
  app.setSerializerCompiler(() => JSON.stringify)
  return app
}
