"""Messages that make no sense, in great number: what the service and the importer make of them."""
