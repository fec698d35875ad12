"""What tests share: scripted worlds, private servers, sample plans."""
